"""Heed in PyTorch: scaled_dot_product_attention, with gradients, and operators that torch.compile knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _heed
from ._arrays import NO_TANGENTS, records_gradient, refuse_tangents
from ._attention import attention as _attention
from ._autograd import attention as _recorded
from ._errors import InvalidArgument, Unsupported
from ._gradients import attention_backward

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# The dispatcher's keys when no mode (tracing, vmap, fake tensors) is between a call and its kernel: without
# and within torch.inference_mode().
_key = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_INFERENCE, _PLAIN = _key.raw_repr(), _key.add(torch._C.DispatchKey.ADInplaceOrView).raw_repr()
_heed.set_plain_keys(_PLAIN, _INFERENCE)
_dispatch_keys = torch._C._dispatch_tls_local_include_set


@torch.library.custom_op("heed::attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None,
              sink: Tensor | None = None, causal: bool = False, scale: float | None = None, softcap: float = 0.0,
              dropout_p: float = 0.0) -> Tensor:
    """heed.attention on dense q [batch, q_len, num_heads, head_dim] as an operator of PyTorch's, without gradients.

    Queries have the positions 0, 1, ... Tensors whose last axis has gaps are copied. Dropout's seed comes from PyTorch's
    default generator.
    """
    out: Tensor = _attention(_dense(q), _dense(k), _dense(v), mask=_dense_or_broadcast(mask), bias=_dense_or_broadcast(bias),
                             sink=sink, causal=causal, scale=scale, softcap=softcap, dropout_p=dropout_p,
                             dropout_seed=int(_draw_seed()) if dropout_p > 0 else None)
    return out


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_args: object, **_options: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@torch.library.custom_op("heed::attention_forward", mutates_args=())
def attention_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None,
                      seed: Tensor | None, causal: bool, scale: float | None, softcap: float, dropout_p: float) -> tuple[Tensor, Tensor]:
    """heed::attention with gradients: out and lse, which is a constant to them. seed: int64, of dropout."""
    out, lse = _attention(_dense(q), _dense(k), _dense(v), mask=_dense_or_broadcast(mask), bias=_dense_or_broadcast(bias), sink=sink,
                          causal=causal, scale=scale, softcap=softcap, dropout_p=dropout_p,
                          dropout_seed=None if seed is None else int(seed), return_lse=True)
    return out, lse


@attention_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_args: object, **_options: object) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


@torch.library.custom_op("heed::attention_backward", mutates_args=())
def attention_gradients(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None,
                        bias: Tensor | None, sink: Tensor | None, seed: Tensor | None, causal: bool, scale: float | None,
                        softcap: float, dropout_p: float, wanted: str) -> list[Tensor]:
    """The gradients of what `wanted` names, such as "q k v bias sink", packed."""
    found = attention_backward(
        dout, _dense(q), _dense(k), _dense(v), out, lse, wanted=wanted.split(), mask=_dense_or_broadcast(mask), bias=_dense_or_broadcast(bias),
        sink=sink, causal=causal, scale=scale, softcap=softcap, dropout_p=dropout_p, dropout_seed=None if seed is None else int(seed))
    return [getattr(found, f"d{name}").contiguous() for name in wanted.split()]


@attention_gradients.register_fake
def _(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _lse: Tensor, _mask: Tensor | None, bias: Tensor | None,
      sink: Tensor | None, _seed: Tensor | None, _causal: bool, _scale: float | None, _softcap: float, _dropout_p: float,
      wanted: str) -> list[Tensor]:
    tensors = {"q": q, "k": k, "v": v, "bias": bias, "sink": sink}
    return [tensors[name].new_empty(tensors[name].shape) for name in wanted.split()]  # type: ignore[union-attr]


@attention_gradients.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[list[Tensor], list[int]]:
    found = [attention_gradients(*(x if dim is None else x.select(dim, n) for x, dim in zip(inputs, dims))) for n in range(info.batch_size)]
    stacked = [torch.stack(gradients) for gradients in zip(*found)]
    return stacked, [0] * len(stacked)


_OPERANDS = "q", "k", "v", "mask", "bias", "sink", "seed"


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.options = inputs[7:]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dout: Tensor, _dlse: Tensor, compute: Callable[..., Any] = attention_gradients) -> tuple[Tensor | None, ...]:
    q, k, v, mask, bias, sink, seed, out, lse = ctx.saved_tensors
    wanted = [name for name, needed in zip(_OPERANDS, ctx.needs_input_grad) if needed]
    found = dict(zip(wanted, compute(dout, q, k, v, out, lse, mask, bias, sink, seed, *ctx.options, " ".join(wanted))))
    return (*(found.get(name) for name in _OPERANDS), None, None, None, None)


attention_forward.register_autograd(_differentiate, setup_context=_save)


class _TransformedBackward(torch.autograd.Function):
    """heed::attention_backward under transforms of torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(attention_gradients(*inputs))

    @staticmethod
    def setup_context(*_: Any) -> None:
        pass

    @staticmethod
    def backward(*_: Any) -> None:
        raise Unsupported("a gradient requires a gradient; Heed has no gradients of gradients")


class _Transformed(torch.autograd.Function):
    """heed::attention_forward under transforms of torch.func, which take no gradients that operators have."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        out, lse = attention_forward(*inputs)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, dout, dlse, _TransformedBackward.apply)

    @staticmethod
    def jvp(*_: Any) -> None:
        raise Unsupported(f"an input has a tangent; {NO_TANGENTS}")


def _draw_seed() -> Tensor:
    return torch.randint(2**63 - 1, (1,))


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by Heed, with gradients of query, key, value and a float attn_mask.

    query [batch, num_heads, q_len, head_dim], key and value [batch, num_kv_heads, kv_len, .]; each also without axes in
    front, or with more axes of batch; an axis of 1 element serves any. float32, float16 or bfloat16; views by transpose
    are read in place. attn_mask: bool (true = may attend), or float32 or query's type, added to the logits; it broadcasts
    to [batch, num_heads, q_len, kv_len]. is_causal: query i sees keys 0..i. A query that sees
    no key gives 0. The same inputs give the same bits, run after run, whatever the number of threads; gradients too.
    Dropout's seed comes from PyTorch's default generator. There are no gradients of gradients.

    Raises heed.Unsupported for nested and sparse tensors, other types and forward-mode derivatives; heed.InvalidArgument for
    shapes that do not fit.
    """
    if dropout_p == 0.0 and not is_compiling():
        # Dense tensors go straight to this thread's CPU; None: what needs copies, broadcasts, the operator or a refusal.
        out: Tensor | None = _heed.sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    return _attend_any(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _attend_any(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
                scale: float | None, enable_gqa: bool) -> Tensor:
    _check_inputs(query, key, value, attn_mask)
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask is given with is_causal; it must be None")
    query, key, value = autocast(query, key, value)
    _check_types(query, key, value, attn_mask)
    rank = max(query.dim(), key.dim(), value.dim())
    query, key, value = _broadcast(query, key, value, enable_gqa)
    if attn_mask is not None:
        attn_mask = _mask_of(attn_mask, [*query.shape[-rank:-1], key.shape[-2]])
    batch = query.shape[:-3]
    query, key, value = (tensor.flatten(0, -4).transpose(1, 2) for tensor in (query, key, value))
    mask, bias = (attn_mask, None) if attn_mask is None or attn_mask.dtype == torch.bool else (None, attn_mask)
    out = attend(query, key, value, mask, bias, None, is_causal, scale, 0.0, dropout_p).transpose(1, 2)
    return out.unflatten(0, batch) if rank > 4 else out[(0,) * (4 - rank)]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None, causal: bool,
           scale: float | None, softcap: float, dropout_p: float) -> Tensor:
    """What the operator heed::attention computes, with gradients where PyTorch records them."""
    transformed = not is_compiling() and torch._C._are_functorch_transforms_active()
    refuse_tangents({"query": q, "key": k, "value": v, "attn_mask": bias, "sink": sink})
    if not records_gradient(q, k, v, bias, sink) and not (transformed and torch.is_grad_enabled()):
        plain: Tensor = attention(q, k, v, mask, bias, sink, causal, scale, softcap, dropout_p)
        return plain
    seed = _draw_seed() if dropout_p > 0 else None
    if not runs_directly(q, k, v):
        forward = _Transformed.apply if transformed else attention_forward
        out: Tensor = forward(q, k, v, mask, bias, sink, seed, causal, scale, softcap, dropout_p)[0]
        return out
    fields: dict[str, Any] = {"causal": causal, "softcap": softcap, "dropout_p": dropout_p}
    if scale is not None:
        fields["scale"] = scale
    if seed is not None:
        fields["dropout_seed"] = int(seed)
    arrays = {"q": _dense(q), "k": _dense(k), "v": _dense(v), "mask": _dense_or_broadcast(mask), "bias": _dense_or_broadcast(bias),
              "sink": sink}
    like = torch.empty_like(arrays["q"].detach()) if q.shape[-1] == v.shape[-1] else None
    return _recorded({name: array for name, array in arrays.items() if array is not None}, fields, like)[0]


def autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the type that torch.autocast gives PyTorch's own attention."""
    device = query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    query, key, value = (tensor.to(dtype) if tensor.dtype in _DTYPES else tensor for tensor in (query, key, value))
    return query, key, value


def runs_directly(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing is between a call and its kernel: no compiler, no mode of PyTorch's, no subclass of Tensor."""
    return (type(q) is type(k) is type(v) is Tensor and not is_compiling() and not q.is_meta
            and torch.autograd.forward_ad._current_level < 0 and _dispatch_keys().raw_repr() in (_PLAIN, _INFERENCE))


def _broadcast(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """All of one rank, 4 or more, with the same axes of batch; heads as query's or, where they are grouped, of key and value
    alike. An extent of 1 serves any, as do axes that are not there."""
    given = {"query": query, "key": key, "value": value}
    rank = max(4, *(tensor.dim() for tensor in given.values()))
    axes = rank - 2 - grouped
    shapes = {name: (*(1,) * (rank - tensor.dim()), *tensor.shape) for name, tensor in given.items()}
    full = [max(extents) if 0 not in extents else 0 for extents in zip(*(shape[:axes] for shape in shapes.values()))]
    for name, shape in shapes.items():
        for axis, (extent, other) in enumerate(zip(shape, full)):
            if extent not in (1, other):
                if axis == rank - 3:
                    raise InvalidArgument(f"{name} has {extent} heads; it must have {other}, or enable_gqa be True")
                raise InvalidArgument(f"axis {axis - rank} of {name} has {extent} elements; it must have {other}, or 1")
    query, key, value = (tensor.expand(*full, *shapes[name][axes:]) for name, tensor in given.items())
    heads = query.shape[-3]
    for name, tensor in (("key", key), ("value", value)) if grouped else ():
        if tensor.shape[-3] == 0 or heads % tensor.shape[-3] != 0:
            raise InvalidArgument(f"{name} has {tensor.shape[-3]} heads; they must divide query's {heads}")
    if key.shape[-3] != value.shape[-3]:
        key, value = (tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value))
    return query, key, value


def _mask_of(mask: Tensor, scores: list[int]) -> Tensor:
    """In 4 axes or fewer, of scores that may have more."""
    fits = mask.dim() <= len(scores) and all(extent in (1, full) for extent, full in zip(mask.shape[::-1], scores[::-1]))
    if not fits:
        raise InvalidArgument(f"attn_mask has the shape {list(mask.shape)}; it must broadcast to {scores}")
    if len(scores) > 4 and mask.dim() > 3:  # else the batch is not of its axes
        return mask.expand(*scores[:-3], *mask.shape[-3:]).flatten(0, -4)
    return mask


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise InvalidArgument(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
        if tensor.is_nested:
            raise Unsupported(f"{name} is a nested tensor; heed.attention takes packed sequences, with cu_seqlens_q and _kv")
        if tensor.layout != torch.strided:
            raise Unsupported(f"{name} has the layout {tensor.layout}; it must be dense, torch.strided")
        if tensor.device != query.device:
            raise InvalidArgument(f"{name} is on {tensor.device}; it must be on {query.device}, as query")
        if tensor.dim() < 2:
            raise Unsupported(f"{name} has {tensor.dim()} dimensions; it must have 2 or more")
    for name, tensor in (("query", query), ("value", value)):
        if not 1 <= tensor.shape[-1] <= _heed.MAX_HEAD_DIM:
            raise Unsupported(f"{name} has the head_dim {tensor.shape[-1]}; it must be 1..{_heed.MAX_HEAD_DIM}")
    if key.shape[-1] != query.shape[-1]:
        raise InvalidArgument(f"key has the head_dim {key.shape[-1]}; it must be query's, {query.shape[-1]}")
    if value.shape[-2] != key.shape[-2]:
        raise InvalidArgument(f"value has {value.shape[-2]} tokens; it must have key's {key.shape[-2]}")


def _check_types(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dtype not in _DTYPES:
            raise Unsupported(f"{name} has elements of {tensor.dtype}; they must be float32, float16 or bfloat16")
        if tensor.dtype != query.dtype:
            raise InvalidArgument(f"{name} has elements of {tensor.dtype}; they must be {query.dtype}, as query's")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise InvalidArgument(f"attn_mask has elements of {attn_mask.dtype}; they must be bool, float32 or {query.dtype}")


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _dense_or_broadcast(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dim() == 0 or tensor.stride(-1) == 0 else _dense(tensor)
