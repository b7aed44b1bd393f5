"""heed.rope, heed.merge_states and heed.linear: operations around attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

from . import _arrays, _heed
from ._errors import InvalidArgument

ArrayT = TypeVar("ArrayT")


def rope(x: ArrayT, cos: Any, sin: Any, positions: Any = None, *, interleaved: bool = False, out: Any = None,
         stream: Any = None) -> ArrayT:
    """x with its pairs (a, b) rotated to (a cos - b sin, b cos + a sin); of x's framework, or `out`, which may be x itself.

    x: [batch, len, num_heads, head_dim], float32, float16 or bfloat16. cos, sin: float32 [max_position, rotary_dim / 2]
        with positions int [batch, len], or [batch, len, rotary_dim / 2] without. rotary_dim is at most head_dim; elements
        after it are copied. Pairs are elements n and n + rotary_dim / 2, or (interleaved) 2n and 2n + 1.
    stream: as of heed.attention, likewise below.

    Raises heed.InvalidArgument for shapes that do not fit, positions outside the tables and an `out` that overlaps an input.
    """
    shape = _arrays.shape_of("x", x)
    _arrays.check_writable("out", out)
    x, cos, sin = (_arrays.without_gradient(name, array) for name, array in (("x", x), ("cos", cos), ("sin", sin)))
    places = None if positions is None else _arrays.int32_array("positions", positions)
    with _arrays.launch(x, stream) as (handle, _):
        result: ArrayT = _arrays.empty(x, shape) if out is None else out
        _heed.rope(x, cos, sin, places, result, interleaved, handle)
    return _arrays.finished(x, result) if out is None else result


@overload
def merge_states(outs: Sequence[ArrayT], lses: Sequence[Any], sink: Any = None, *, return_lse: Literal[True], out: Any = None,
                 lse: Any = None, stream: Any = None) -> tuple[ArrayT, ArrayT]: ...


@overload
def merge_states(outs: Sequence[ArrayT], lses: Sequence[Any], sink: Any = None, *, return_lse: Literal[False] = False,
                 out: Any = None, lse: Any = None, stream: Any = None) -> ArrayT: ...


def merge_states(outs: Sequence[Any], lses: Sequence[Any], sink: Any = None, *, return_lse: bool = False, out: Any = None,
                 lse: Any = None, stream: Any = None) -> Any:
    """Attention over all keys from attentions over parts of them, which were computed without sink.

    outs: arrays [batch, q_len, num_heads, head_dim_v] of equal strides; lses: float32 [batch, num_heads, q_len] each, as
        many; both as heed.attention returns them. sink: float32 [num_heads], which joins the denominator once.
    Returns out, or with return_lse (out, lse), of the framework of outs[0]; `out=`, `lse=` are arrays to write instead.

    Raises heed.InvalidArgument for shapes that do not fit.
    """
    if len(outs) == 0:
        raise InvalidArgument("outs is empty; there must be 1 state or more")
    shape = _arrays.shape_of("outs[0]", outs[0])
    for name, array in (("out", out), ("lse", lse)):
        _arrays.check_writable(name, array)
    outs = [_arrays.without_gradient(f"outs[{n}]", array) for n, array in enumerate(outs)]
    lses = [_arrays.without_gradient(f"lses[{n}]", array) for n, array in enumerate(lses)]
    with _arrays.launch(outs[0], stream) as (handle, _):
        result = _arrays.empty(outs[0], shape) if out is None else out
        logarithms = lse
        if return_lse and lse is None:
            logarithms = _arrays.empty(outs[0], _arrays.lse_shape(shape), "float32")
        _heed.merge_states(outs, lses, _arrays.without_gradient("sink", sink), result, logarithms, handle)
    if out is None:
        result = _arrays.finished(outs[0], result)
    if lse is None:
        logarithms = _arrays.finished(outs[0], logarithms)
    return (result, logarithms) if return_lse else result


class LinearWeights:
    """weight [dim_out, dim_in] and bias [dim_out] for heed.linear, alike in type: float32, float16 or bfloat16.

    On the CPU they are packed, not kept; arrays on CUDA are kept and read by each call. Read-only in use: threads may share.
    """

    def __init__(self, weight: Any, bias: Any = None):
        self._weights = _heed.LinearWeights(_arrays.without_gradient("weight", weight), _arrays.without_gradient("bias", bias))

    @property
    def dim_in(self) -> int:
        return self._weights.dim_in

    @property
    def dim_out(self) -> int:
        return self._weights.dim_out


def linear(x: ArrayT, weights: LinearWeights, *, out: Any = None, stream: Any = None) -> ArrayT:
    """x weight^T + bias, summed in float32: [.., dim_out] of x [len, dim_in] or [batch, len, dim_in], or written to `out`.

    x is of the weights' type and device. A row's bits depend on the row alone. Raises heed.InvalidArgument for shapes and
    types that do not fit.
    """
    shape = _arrays.shape_of("x", x)
    _arrays.check_writable("out", out)
    x = _arrays.without_gradient("x", x)
    with _arrays.launch(x, stream) as (handle, _):
        result: ArrayT = _arrays.empty(x, (*shape[:-1], weights.dim_out)) if out is None else out
        weights._weights.multiply(x, result, handle)
    return _arrays.finished(x, result) if out is None else result
