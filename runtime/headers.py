"""What the public headers say, for what is made from them: structs, enumerators, the lists of heed/fields.h."""
import pathlib
import re
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).resolve().parent / "include/heed"
TEXT = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("types.h", "heed.h", "layer.h", "ops.h", "fields.h"))
ENUMS = frozenset(re.findall(r"typedef enum (\w+)", TEXT))
VALUES = {name: int(value) for name, value in re.findall(r"\b(HEED_\w+) = (\d+)", TEXT)}
DECLARATION = re.compile(r"\s*(?:/\*+(?P<before>.*?)\*/\s*)?(?P<type>(?:const )?\w+)\s+(?P<names>[^;/]+);"
                         r"(?: */\*+<?(?P<after>.*?)\*/)?", re.S)


class Field(NamedTuple):
    type: str
    name: str
    is_pointer: bool
    count: str  # elements of an array, "" when it is none
    doc: str


class Entry(NamedTuple):
    """An entry of a list; what it lacks is empty."""
    name: str
    initial: str = ""
    least: str = ""
    most: str = ""
    allowed: str = ""


def struct(name):
    """The fields in order. A comment is about all names of its declaration."""
    body = re.search(rf"typedef struct {name} {{(.*?)\n}} {name};", TEXT, re.S)[1]
    fields = []
    for found in DECLARATION.finditer(body):
        doc = re.sub(r"\s*\n\s*(\* )?", " ", found["after"] or found["before"] or "").strip()
        for declarator in found["names"].split(","):
            star, word, count = re.fullmatch(r"\s*(\*?)(\w+)(?:\[(\w+)\])?", declarator).groups()
            fields.append(Field(found["type"], word, star == "*", count or "", doc))
    return fields


def entries(name):
    """The entries of a list, those of the lists that it names included."""
    body = re.search(rf"#define {name}\(X\)((?:[^\n]*\\\n)*[^\n]*\n)", TEXT)[1]
    result = []
    for other, arguments in re.findall(r"(HEED_\w+)\(X\)|\bX\(((?:\"[^\"]*\"|[^\"()])*)\)", body):
        parts = re.findall(r"\"[^\"]*\"|[^\",\s\\]+", arguments)
        result += entries(other) if other else [Entry(*(part.strip('"') for part in parts))]
    return result
