"""Gradients of attention and dense layers, dropout's mask, and pooling of heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from . import _arrays, _heed
from ._attention import Options, split
from ._errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from typing_extensions import Unpack

DIFFERENTIABLE = "q", "k", "v", "bias", "sink"


class AttentionGradients(NamedTuple):
    """Each shaped as what it is the gradient of, and None where that was not asked for."""

    dq: Any = None
    dk: Any = None
    dv: Any = None
    dbias: Any = None
    dsink: Any = None


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, wanted: Collection[str] | None = None,
                       stream: Any = None, **options: Unpack[Options]) -> AttentionGradients:
    """Gradients of heed.attention from dout, that of its out; recomputed from lse, the scores are never stored.

    q, k, v, options: those of the call; out, lse: what it returned with return_lse=True. wanted: names among "q", "k", "v",
    "bias" and "sink"; by default all that the call has. Sums are in float32; the bits depend neither on threads nor on
    repeats. Keys that no query sees have gradients of 0.

    Raises heed.Unsupported for int8 keys, pages and score_mod; heed.InvalidArgument for shapes that do not fit.
    """
    arrays, fields = split(q, k, v, options)
    names = [name for name in DIFFERENTIABLE if name in arrays] if wanted is None else list(wanted)
    for name in names:
        if name not in DIFFERENTIABLE or name not in arrays:
            raise InvalidArgument(f"wanted has {name!r}; it must be one of q, k, v, bias and sink, and the call have it")
    expected = (*_arrays.shape_of("q", q)[:-1], *_arrays.shape_of("v", v)[-1:])
    for name, array in (("out", out), ("dout", dout)):
        if _arrays.shape_of(name, array) != expected:
            raise InvalidArgument(f"{name} has the shape {list(array.shape)}; it must be {list(expected)}, q's with v's last axis")
        if _arrays.framework(array) == _arrays.framework(q) != "" and array.dtype != q.dtype:
            raise InvalidArgument(f"{name} has elements of {array.dtype}; they must be {q.dtype}, as q's")
    arrays.update(out=out, lse=lse)
    arrays = {name: _arrays.without_gradient(name, array) for name, array in arrays.items()}
    found = differentiate(arrays, fields, _arrays.without_gradient("dout", dout), names, stream)
    return AttentionGradients(**{f"d{name}": gradient for name, gradient in found.items()})


def differentiate(arrays: dict[str, Any], fields: dict[str, Any], dout: Any, names: Collection[str],
                  stream: Any = None) -> dict[str, Any]:
    """The gradients of the arrays with these names. Arrays with gaps or repeated elements are copied for the call."""
    arrays, gradients, like = dict(arrays), {}, arrays["q"]
    for name in names:
        if name == "sink":
            gradients[name] = _arrays.empty(like, (int(like.shape[-2]),), "float32")
        else:
            arrays[name], gradients[name] = _arrays.with_twin(arrays[name])
    if "bias" in gradients and (0 in like.shape or 0 in arrays["k"].shape):
        gradients["bias"][...] = 0  # nothing is written
    if not _arrays.same_layout(dout, arrays["out"]):
        arrays["out"], twin = _arrays.with_twin(arrays["out"])
        if _arrays.framework(dout) != _arrays.framework(twin):
            raise InvalidArgument(f"dout is a {type(dout).__name__} of other strides than out's; it must be a {type(twin).__name__}, as out")
        twin[...] = dout
        dout = twin
    with _arrays.launch(like, stream) as (handle, allocate):
        given = {"dout": dout, **{f"d{name}": gradient for name, gradient in gradients.items()}}
        _heed.attention_backward(arrays, fields, given, handle, allocate)
    return {name: _arrays.finished(like, gradient) for name, gradient in gradients.items()}


def differentiate_layer(layer: _heed.Layer, arrays: dict[str, Any], fields: dict[str, Any], dy: Any, names: Collection[str],
                        weights: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
    """Gradients of a call of a layer without its results: those of the arrays with these names and of weights."""
    arrays, gradients, like = dict(arrays), {}, arrays["x"]
    for name in names:
        if name not in ("x", "context", "bias"):
            raise Unsupported(f"{name} requires a gradient, which Heed does not compute; give the call {name}.detach()")
        arrays[name], gradients[f"d{name}"] = _arrays.with_twin(arrays[name])
    gradients.update((name, _arrays.empty(weight, tuple(weight.shape))) for name, weight in weights.items())
    for gradient in gradients.values():
        gradient[...] = 0  # they are summed into
    dy = _arrays.packed(dy)
    with _arrays.launch(like, stream) as (handle, allocate):
        layer.backward(arrays, fields, {**gradients, "dy": dy}, handle, allocate)
    return {name: _arrays.finished(like, gradients[name if name in weights else f"d{name}"]) for name in (*names, *weights)}


class LinearGradients(NamedTuple):
    """The gradients of x, weight and bias."""

    dx: Any
    dweight: Any
    dbias: Any


def linear_backward(dy: Any, x: Any, weight: Any, *, weight_dtype: Literal["float32"] | None = None,
                    stream: Any = None) -> LinearGradients:
    """Gradients of y = x weight^T + bias from dy, that of y: arrays of dy's framework and type; dweight and dbias of
    weight_dtype where it is given.

    x: [.., dim_in]; weight: [dim_out, dim_in]; dy: [.., dim_out]; all packed and alike in type. Sums are in float32; the bits
    depend neither on threads nor on repeats. Raises heed.InvalidArgument for shapes that do not fit.
    """
    shapes = {name: _arrays.shape_of(name, array) for name, array in (("x", x), ("weight", weight), ("dy", dy))}
    if len(shapes["weight"]) != 2 or len(shapes["x"]) == 0:
        raise InvalidArgument(f"weight has the shape {list(shapes['weight'])} and x {list(shapes['x'])}; they must be "
                              "[dim_out, dim_in] and [.., dim_in]")
    (dim_out, dim_in), rows = shapes["weight"], shapes["x"][:-1]
    for name, shape in (("x", (*rows, dim_in)), ("dy", (*rows, dim_out))):
        if shapes[name] != shape:
            raise InvalidArgument(f"{name} has the shape {list(shapes[name])}; it must be {list(shape)}")
    if weight_dtype not in (None, "float32"):
        raise InvalidArgument(f"weight_dtype is {weight_dtype!r}; it must be 'float32' or None")
    result = LinearGradients(_arrays.empty(dy, (*rows, dim_in)),
                             *(_arrays.zeros(dy, shape, weight_dtype) for shape in (shapes["weight"], (dim_out,))))
    dy, x, weight = (_arrays.without_gradient(name, array) for name, array in (("dy", dy), ("x", x), ("weight", weight)))
    with _arrays.launch(dy, stream) as (handle, allocate):
        arrays = {"dy": dy, "x": x, "weight": weight, "dx": result.dx, "dweight": result.dweight, "dbias": result.dbias}
        _heed.linear_backward(arrays, int(np.prod(rows, dtype=np.int64)), dim_in, dim_out, handle, allocate)
    return LinearGradients(*(_arrays.finished(dy, gradient) for gradient in result))


def dropout_mask(shape: tuple[int, int, int, int], dropout_p: float, dropout_seed: int, dropout_offset: int = 0, *,
                 like: Any = None) -> Any:
    """The mask of attention's dropout: uint8 [batch, num_heads, q_len, kv_len], 1 where a weight is kept; kept ones are
    multiplied by 1 / (1 - dropout_p). shape: of all scores, packed sequences with the longest lengths.

    like: an array whose framework the result shall have (on the CPU); NumPy by default.
    """
    keep = _arrays.empty(np.empty(0, np.uint8) if like is None else like, shape, "uint8")
    _heed.dropout_mask(dropout_p, dropout_seed, dropout_offset, keep)
    return keep


def mha_to_gqa(weight: Any, num_heads: int, num_kv_heads: int) -> Any:
    """Mean-pools the heads of K's or V's weight [num_heads * head_dim, dim] to [num_kv_heads * head_dim, dim]: the start of
    GQA uptraining. A new array of weight's framework, on the CPU, packed. num_kv_heads divides num_heads.
    """
    return _convert_heads(weight, num_heads, num_kv_heads, num_heads, num_kv_heads, expands=False)


def gqa_to_mha(weight: Any, num_heads: int, num_kv_heads: int) -> Any:
    """The expansion: repeats each of num_kv_heads heads of a weight [num_kv_heads * head_dim, dim] for its group."""
    return _convert_heads(weight, num_kv_heads, num_heads, num_heads, num_kv_heads, expands=True)


def _convert_heads(weight: Any, has: int, gets: int, num_heads: int, num_kv_heads: int, expands: bool) -> Any:
    shape = _arrays.shape_of("weight", weight)
    if len(shape) != 2 or has < 1 or gets < 1 or shape[0] % has != 0:
        raise InvalidArgument(f"weight has the shape {list(shape)}; it must be [heads * head_dim, dim] of {has} heads")
    weight = weight.detach() if hasattr(weight, "detach") else weight  # a new start: no gradient flows back
    result = _arrays.empty(weight, (shape[0] // has * gets, shape[1]))
    mha, gqa = (result, weight) if expands else (weight, result)
    _heed.convert_heads(mha, gqa, num_heads, num_kv_heads, expands)
    return _arrays.finished(weight, result)
