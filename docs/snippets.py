"""The code in README.md and in the pages of docs/ is the text of files: snippets.py [--update].

A page names the file in the line before the block, <!-- docs/examples/attention.c --> or, for a part of it,
<!-- docs/examples/decode_paged.cpp: loop -->. The part is what is between the lines `// [loop]` and `// [/loop]` (in Python and
CMake `# [loop]`), moved to the left. Without --update a block that is not its file's text is an error, and so is a block in C, C++,
Python or CMake without a name in README.md and the tutorials.
"""
import argparse
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?:^<!-- (?P<path>[\w./]+)(?:: (?P<part>[\w-]+))? -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^ *(?://|#) \[/?[\w-]+\]\n", re.MULTILINE)
NAMED = {"c", "cpp", "python", "cmake"}


def text_of(path, part):
    text = (ROOT / path).read_text()
    if part:
        found = re.search(rf"^ *(?://|#) \[{part}\]\n(.*?)^ *(?://|#) \[/{part}\]$", text, re.MULTILINE | re.DOTALL)
        if not found:
            sys.exit(f"{path} has no part [{part}]")
        text = textwrap.dedent(found[1])
    return MARK.sub("", text)


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def checked(page, update):
    """The page with its blocks as the files have them, and what is wrong with it."""
    wrong = []

    def block(found):
        if not found["path"]:
            if found["language"] in NAMED and (page.name == "README.md" or page.parent.name == "tutorials"):
                wrong.append(f"{page.relative_to(ROOT)}: a block of {found['language']} names no file: {found['text'][:60]!r}")
            return found[0]
        text = text_of(found["path"], found["part"])
        if text != found["text"] and not update:
            wrong.append(f"{page.relative_to(ROOT)}: the block is not the text of {found['path']}; docs/snippets.py --update writes it")
        return found[0].replace(f"```{found['language']}\n{found['text']}```", f"```{found['language']}\n{text}```")

    return BLOCK.sub(block, page.read_text()), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    update = parser.parse_args().update
    wrong = []
    for page in pages():
        text, faults = checked(page, update)
        wrong += faults
        if update and text != page.read_text():
            page.write_text(text)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
