"""Writes _keywords.py, the keywords that are fields of heed_problem or heed_args: keywords.py OUT."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import headers

TYPES = {"bool": "bool", "int32_t": "int", "float": "float",
         "heed_position": "Literal[" + ", ".join(f'"{entry.initial}"' for entry in headers.entries("HEED_POSITION_WORDS")) + "]"}


def typed_dict(name, doc, types):
    return "\n".join([f"class {name}(TypedDict, total=False):", f'    """{doc}"""', "",
                      *(f"    {field}: {kind}" for field, kind in types.items()), ""])


def typed(fields, suffix=""):
    types = {field.name: TYPES.get(field.type) for field in headers.struct("heed_problem")}
    return {entry.name: types[entry.name] + suffix for entry in headers.entries(fields)}


def names(arrays):
    return [entry.name for entry in headers.entries(arrays)]


metadata, head_arrays = names("HEED_METADATA_ARRAYS"), names("HEED_HEAD_ARRAYS")
pathlib.Path(sys.argv[1]).write_text("\n".join([
    '"""Keywords that are fields of heed_problem or heed_args, as heed.h and fields.h have them. Made by keywords.py."""', "",
    "from __future__ import annotations", "", "from typing import Any, Literal, TypedDict", "",
    f"METADATA = frozenset({tuple(metadata)})", f"HEAD_ARRAYS = frozenset({tuple(head_arrays)})", "", "",
    typed_dict("LogitKeywords", "Which keys a query sees and what its logits are.", typed("HEED_LOGIT_FIELDS")), "",
    typed_dict("CallKeywords", "Keywords of attention; None is as if not given.",
               {**typed("HEED_NAMED_FIELDS", " | None"), **dict.fromkeys(metadata + head_arrays, "Any")})]), encoding="utf-8")
