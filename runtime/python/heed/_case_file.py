"""Cases of the command `heed`: one safetensors file, see docs/reference/case-file.md."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _heed
from ._attention import Options, detached, split
from ._errors import InvalidArgument
from ._keywords import METADATA

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The types of safetensors, by NumPy's name.
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "int32": "I32"}
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "I8": "i8"}  # of q, k and v
HOW_IT_RUNS = frozenset(("max_threads", "cuda_capability", "device_status", "workspace"))
ELSEWHERE = "score_mod", "score_buffers", "max_kv_len"  # a case file has no place for them


def save_case(path: str | os.PathLike[str], q: Any, k: Any, v: Any, **options: Unpack[Options]) -> None:
    """Writes the arguments of heed.attention as a file that `heed run` and `heed check` take.

    path: of the file, best with the suffix .safetensors. q, k, v and options: as for heed.attention, copied as they are, also
    from a device. max_threads, cuda_capability, workspace and device_status are not written: they say how it runs.
    Raises InvalidArgument for score_mod, score_buffers and max_kv_len, which a case file has no place for, and for shapes
    and element types that heed.attention does not take; OSError where the file cannot be written.
    """
    for name in ELSEWHERE:
        if options.get(name) is not None:
            raise InvalidArgument(f"{name} is given; a case file has no place for it, it must be None")
    arrays, fields = split(q, k, v, options)
    arrays, checked = detached(arrays), dict(fields)
    stored = {name: _stored(name, array) for name, array in arrays.items() if name not in HOW_IT_RUNS}
    for name in "mask", "bias":
        if name in stored:
            kind, array = stored[name]
            stored[name] = kind, array.reshape((1,) * (4 - array.ndim) + array.shape)
    dropout = {key: _plain(fields.pop(f"dropout_{key}")) for key in ("p", "seed", "offset") if f"dropout_{key}" in fields}
    problem = {name: _plain(value) for name, value in fields.items() if name not in HOW_IT_RUNS}
    problem.update(dtype=_dtype("q", stored), kv_dtype=_dtype("k", stored))
    _heed.check_call(arrays, checked)
    if dropout:
        problem["dropout"] = dropout
    if "q_offsets" in stored:
        problem.setdefault("position", "explicit")
    if "cu_seqlens_q" in stored:
        problem["q_storage"] = "varlen"
    if "cu_seqlens_kv" in stored or "page_table" in stored:
        problem["kv_storage"] = "paged" if "page_table" in stored else "varlen"
    write(path, json.dumps(problem), stored)


def write(path: str | os.PathLike[str], problem: str, arrays: Mapping[str, tuple[str, np.ndarray[Any, Any]]]) -> None:
    """The problem as JSON, and arrays with their types in safetensors: larger elements first, so that each is aligned."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1][1].itemsize)
    header: dict[str, Any] = {"__metadata__": {"heed_problem": problem}}
    end = 0
    for name, (kind, array) in ordered:
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with pathlib.Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, array) in ordered:
            file.write(array.tobytes())


def _stored(name: str, array: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The elements on the host, and their type in safetensors."""
    if _arrays.framework(array) == "torch":
        array = array.detach().cpu()
        if array.dtype == sys.modules["torch"].bfloat16:  # which NumPy has not
            return "BF16", array.view(sys.modules["torch"].int16).numpy()
    array = np.asarray(array) if _arrays.framework(array) or name in METADATA else np.from_dlpack(array)
    if array.dtype.name not in TYPES or not array.dtype.isnative:
        raise InvalidArgument(f"{name} has elements of {array.dtype}; they must be one of {', '.join(TYPES)}")
    return TYPES[array.dtype.name], array


def _dtype(name: str, stored: Mapping[str, tuple[str, np.ndarray[Any, Any]]]) -> str:
    kind, array = stored[name]
    if kind not in DTYPES:
        raise InvalidArgument(f"{name} has elements of {array.dtype}; they must be float32, float16 or bfloat16")
    return DTYPES[kind]


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which json knows."""
    return value.item() if isinstance(value, np.generic) else value
