"""Prints a fuzz target's words, and of case_file the keys of the problem that fields.h lists: dictionary.py TARGET."""
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "runtime"))
import headers

target = sys.argv[1]
print((FOLDER / f"{target}.dict").read_text(encoding="latin-1"), end="")
if target == "case_file":
    for entry in headers.entries("HEED_CALL_FIELDS") + headers.entries("HEED_LOGIT_FIELDS"):
        print(rf'"\\\"{entry.name}\\\":"')
