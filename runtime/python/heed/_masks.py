"""Masks of any type as what Heed reads: bool or uint8, or a bias that is added."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from . import _arrays
from ._errors import InvalidArgument, Unsupported

Meaning = Literal["attend", "hide", "add"]
MEANINGS = "attend", "hide", "add"


def kind_of(array: Any) -> str:
    """"bool" (uint8 too), "int" or "float"."""
    if _arrays.framework(array) == "torch":
        torch = sys.modules["torch"]
        if array.dtype in (torch.bool, torch.uint8):
            return "bool"
        return "float" if array.is_floating_point() else "int"
    dtype = np.dtype(array.dtype)
    if dtype.kind == "b" or (dtype.kind == "u" and dtype.itemsize == 1):
        return "bool"
    return "int" if dtype.kind in "iu" else "float"  # ml_dtypes' bfloat16 has the kind V


def read_mask(name: str, array: Any, means: str | None, true_hides: bool) -> tuple[Any, Any]:
    """(mask, None) with a mask whose true elements mean what true_hides says, or (None, bias)."""
    if means is None and isinstance(array, np.ndarray) and array.dtype.kind == "b":
        return array, None  # at once, since it costs every call
    if means is not None and means not in MEANINGS:
        raise InvalidArgument(f"mask_means is {means!r}; it must be 'attend', 'hide' or 'add'")
    if not hasattr(array, "dtype"):
        return array, None  # refused where it is read
    kind = kind_of(array)
    if means == "add":
        if kind != "float":
            raise InvalidArgument(f"{name} has elements of {array.dtype}, and mask_means is 'add'; they must be float32 or the queries' type")
        return None, array
    if kind == "float":
        if means is None:
            raise InvalidArgument(f"{name} has elements of {array.dtype}, which may mean several things; say which: mask_means must be "
                                  "'attend' (1 = may attend, 0 = hidden), 'hide' (1 = hidden) or 'add' (added to the logits)")
        if not bool(((array == 0) | (array == 1)).all()):
            raise InvalidArgument(f"{name} has elements other than 0 and 1, and mask_means is {means!r}; for what is added to the logits it "
                                  "must be 'add'")
    inverts = means is not None and (means == "hide") != true_hides
    if kind == "bool" and not inverts:
        return array, None
    if _arrays.framework(array) == "":
        raise Unsupported(f"{name} is a {type(array).__name__} with elements of {array.dtype}; they must be bool or uint8")
    array = array.detach() if hasattr(array, "detach") else array
    return (array == 0 if inverts else array != 0), None


def means_of_both(means: str | None, one: Any, other: Any) -> tuple[str | None, str | None]:
    """What `means` says of each of two masks: of bools beside floats that are added nothing."""
    if means != "add" or not (hasattr(one, "dtype") and hasattr(other, "dtype")):
        return means, means
    kinds = kind_of(one), kind_of(other)
    if "float" not in kinds:
        return means, means
    return tuple(None if kind == "bool" else means for kind in kinds)  # type: ignore[return-value]


def joined(mask: Any, bias: Any) -> Any:
    """The sum of two biases, one of which may be None."""
    return bias if mask is None else mask if bias is None else mask + bias
