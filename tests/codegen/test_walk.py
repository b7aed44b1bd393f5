"""The pages of docs/internals: each link leads to a file, and a name in the link's text stands in it."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
PAGES = sorted((ROOT / "docs/internals").glob("*.md"))
LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)\)")


class Walk(unittest.TestCase):
    def test_links_lead_to_what_they_name(self):
        self.assertGreaterEqual(len(PAGES), 4)
        links = 0
        for page in PAGES:
            for text, target in LINK.findall(page.read_text()):
                if "://" in target:
                    continue
                links += 1
                file = page.parent / target
                self.assertTrue(file.exists(), f"{page.name}: {target} does not exist")
                name = re.fullmatch(r"`([A-Za-z_][\w]*)`", text)
                if name and file.is_file():
                    self.assertRegex(file.read_text(), rf"\b{name[1]}\b", f"{page.name}: {target} has no {name[1]}")
        self.assertGreater(links, 30)


unittest.main()
