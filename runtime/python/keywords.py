"""Writes _keywords.py, the keywords that are fields of C structs: keywords.py OUT."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import headers


def literal(enum, without=()):
    words = [entry.initial for entry in headers.entries(f"{enum.upper()}_WORDS") if entry.name not in without]
    return "Literal[" + ", ".join(f'"{word}"' for word in words) + "]"


TYPES = {"bool": "bool", "int32_t": "int", "float": "float",
         **{enum: literal(enum) for enum in ("heed_position", "heed_device", "heed_weight_layout", "heed_qk_norm")}}


def typed(struct, fields, suffix=""):
    types = {field.name: field.type for field in headers.struct(struct)}
    return {entry.name: TYPES[types[entry.name]] + suffix for entry in headers.entries(fields)}


def typed_dict(name, doc, structs, types):
    docs = {field.name: field.doc for struct in structs for field in headers.struct(struct)}
    lines = [f"    {field}: {docs[field]}" for field in types if docs.get(field)]
    return "\n".join(["", "", f"class {name}(TypedDict, total=False):", f'    """{doc}', "", *lines, '    """', "",
                      *(f"    {field}: {kind}" for field, kind in types.items()), ""])


def frozen(name, arrays):
    names = [f'"{entry.name}"' for entry in headers.entries(arrays)]
    return f"{name} = frozenset(({', '.join(names)}))\n"


ARRAYS = headers.entries("HEED_METADATA_ARRAYS") + headers.entries("HEED_HEAD_ARRAYS")
pathlib.Path(sys.argv[1]).write_text(
    '''"""Keywords that are fields of C structs, by the lists of fields.h. Made by keywords.py."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

''' + frozen("METADATA", "HEED_METADATA_ARRAYS") + frozen("HEAD_ARRAYS", "HEED_HEAD_ARRAYS")
    + typed_dict("CallKeywords", "Keywords of attention.", ("heed_problem", "heed_args"), {
        **typed("heed_problem", "HEED_NAMED_FIELDS", " | None"), **{entry.name: "Any" for entry in ARRAYS}})
    + typed_dict("LayerKeywords", "Keywords of Layer.", ("heed_layer_config",), {
        **typed("heed_layer_config", "HEED_LAYER_FIELDS"), **typed("heed_layer_config", "HEED_LOGIT_FIELDS"),
        "position": literal("heed_position", without=["HEED_EXPLICIT"])}), encoding="utf-8")
