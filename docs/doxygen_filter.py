"""Doxygen's INPUT_FILTER: prints a header with its plain comments as comments of Doxygen's, line for line.

A comment is about the declaration behind it, or in front of it on the same line and then about each name there; the first of a
file is about the file; headings, /* ---- ..., stay plain; lines that are shifted to the right, as formulas, stay
lines. Nothing in a comment is a command or HTML. A field, enumerator or method without a comment is said by its name: it gets
one that shows nothing.
"""

import pathlib
import re
import sys

SPECIAL = re.compile(r"[\\@&<>#%]|::")
TRAILING = r"(?: *(?:/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)))?"
FIELD = re.compile(r"^ +(?!return |using )(?P<type>[\w:<> ]+[ *]+)(?P<names>\*?\w+(\[\w+\])?(, \*?\w+(\[\w+\])?)*);" + TRAILING,
                   re.MULTILINE | re.DOTALL)
ENUMERATOR = re.compile(r"(?<=[ {])(?P<name>HEED_\w+ = \d+,?)" + TRAILING, re.DOTALL)
METHOD = re.compile(r"^    (?!if|for|return)(?=[^\n]*\([^\n]*[{}]$)", re.MULTILINE)
MACRO = re.compile(r"^(#define [^\n]*?)/\*(.*?)\*/", re.MULTILINE)
BLOCK = re.compile(r"^(/\*(?! ----)|  +/\*(?!\*))(.*?)\*/", re.MULTILINE | re.DOTALL)
SHIFTED = re.compile(r"^(?: \*|///)   .*$", re.MULTILINE)
LINE = re.compile(r"^( *)//(?! ----)(.*)$", re.MULTILINE)


def escape(text):
    return SPECIAL.sub(lambda found: "\\" + found.group(), text)


def comment(found):
    """Of a declaration: its text as it stands, and on one line."""
    text = found["block"] or found["line"]
    text = escape(text) if text else r" \n "
    return text, " ".join(text.split("\n"))


def of_field(found):
    text, line = comment(found)
    first, *others = found["names"].split(", ")
    return f"/**{text}*/ {found['type']}{first};" + "".join(f" /**{line}*/ {found['type'].rstrip('* ')} {name};" for name in others)


def of_enumerator(found):
    return f"/**{comment(found)[0]}*/ {found['name']}"


def filtered(text):
    text = BLOCK.sub(lambda found: f"{found[1]}*{escape(found[2])}*/", text)
    text = LINE.sub(lambda found: f"{found[1]}///{escape(found[2])}", text)
    text = SHIFTED.sub(r"\g<0> \\n", text)
    text = MACRO.sub(lambda found: f"{found[1]}/**<{escape(found[2])}*/", METHOD.sub(r"    /** \\n */ ", text))
    text = FIELD.sub(of_field, ENUMERATOR.sub(of_enumerator, text))
    return re.sub(r"/\*\*|///", r"\g<0> @about_file", text, count=1)


print(filtered(pathlib.Path(sys.argv[1]).read_text()), end="")
