"""Writes _keywords.py, the types of the keywords that are fields of heed_problem: keywords.py OUT."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import headers

TYPES = {"bool": "bool", "int32_t": "int", "float": "float",
         "heed_position": "Literal[" + ", ".join(f'"{entry.initial}"' for entry in headers.entries("HEED_POSITION_WORDS")) + "]"}


def typed_dict(name, doc, fields, suffix):
    types = {field.name: TYPES.get(field.type) for field in headers.struct("heed_problem")}
    lines = [f"    {entry.name}: {types[entry.name]}{suffix}" for entry in headers.entries(fields)]
    return "\n".join([f"class {name}(TypedDict, total=False):", f'    """{doc}"""', "", *lines, ""])


pathlib.Path(sys.argv[1]).write_text("\n".join([
    '"""Keywords that are fields of heed_problem, as heed.h and fields.h have them. Made by keywords.py."""', "",
    "from __future__ import annotations", "", "from typing import Literal, TypedDict", "", "",
    typed_dict("LogitKeywords", "Which keys a query sees and what its logits are.", "HEED_LOGIT_FIELDS", ""), "",
    typed_dict("ProblemKeywords", "Keywords of attention; None is as if not given.", "HEED_NAMED_FIELDS", " | None")]),
    encoding="utf-8")
