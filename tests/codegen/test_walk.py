"""The pages: each link leads to a file, a name in the link's text is in that file, and files that a page names exist."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)\)")
NAMED_FILE = re.compile(r"`((?:bench|cmake|docs|generators|runtime|schedules|tests)/[^`\s]*)`")


class Walk(unittest.TestCase):
    def test_links_lead_to_what_they_name(self):
        self.assertGreaterEqual(len(PAGES), 25)
        links = 0
        for page in PAGES:
            for text, target in LINK.findall(page.read_text()):
                if "://" in target or target.startswith("mailto:"):
                    continue
                links += 1
                file = page.parent / target
                self.assertTrue(file.exists(), f"{page.name}: {target} does not exist")
                name = re.fullmatch(r"`([A-Za-z_][\w]*)`", text)
                if name and file.is_file():
                    self.assertRegex(file.read_text(), rf"\b{name[1]}\b", f"{page.name}: {target} has no {name[1]}")
        self.assertGreater(links, 150)

    def test_named_files_exist(self):
        names = 0
        for page in PAGES:
            for named in NAMED_FILE.findall(page.read_text()):
                if re.search(r"NAME|ISA|<", named):  # a file of the reader's
                    continue
                names += 1
                parts = re.fullmatch(r"(.*)\{(.*)\}(.*)", named)
                for file in [parts[1] + part + parts[3] for part in parts[2].split(",")] if parts else [named]:
                    self.assertTrue((ROOT / file).exists(), f"{page.name}: {file} does not exist")
        self.assertGreater(names, 80)

    def test_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), 190)


unittest.main()
