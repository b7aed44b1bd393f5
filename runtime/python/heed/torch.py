"""Heed in PyTorch: scaled_dot_product_attention, with gradients, and operators that torch.compile knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _heed
from ._arrays import records_gradient
from ._attention import attention as _attention
from ._autograd import attention as _recorded
from ._errors import InvalidArgument, Unsupported
from ._gradients import attention_backward

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# The dispatcher's keys when no mode (tracing, vmap, autocast, fake tensors) is between a call and its kernel: without
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


_OPERANDS = "q", "k", "v", "mask", "bias", "sink", "seed"


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.options = inputs[7:]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask, bias, sink, seed, out, lse = ctx.saved_tensors
    wanted = [name for name, needed in zip(_OPERANDS, ctx.needs_input_grad) if needed]
    found = dict(zip(wanted, attention_gradients(dout, q, k, v, out, lse, mask, bias, sink, seed, *ctx.options, " ".join(wanted))))
    return (*(found.get(name) for name in _OPERANDS), None, None, None, None)


attention_forward.register_autograd(_differentiate, setup_context=_save)


def _draw_seed() -> Tensor:
    return torch.randint(2**63 - 1, (1,))


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by Heed, with gradients of query, key, value and a float attn_mask.

    query [batch, num_heads, q_len, head_dim], key and value [batch, num_kv_heads, kv_len, .]; all three also without the
    axis of heads, without both, or with one more axis of batch in front; a batch of 1 serves any. float32, float16 or
    bfloat16; views by transpose are read in place. attn_mask: bool (true = may attend), or float32 or query's type, added
    to the logits; it broadcasts to [batch, num_heads, q_len, kv_len]. is_causal: query i sees keys 0..i. A query that sees
    no key gives 0. The same inputs give the same bits, run after run, whatever the number of threads; gradients too.
    Dropout's seed comes from PyTorch's default generator. There are no gradients of gradients.

    Raises heed.Unsupported for nested tensors, other ranks and types; heed.InvalidArgument for shapes that do not fit.
    """
    if dropout_p == 0.0:
        out = attend_here(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    return _attend_any(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def attend_here(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None,
                enable_gqa: bool) -> Tensor | None:
    """scaled_dot_product_attention of dense tensors straight on this thread's CPU, with strides as query's; None where it
    needs copies, broadcasts, the operator or a refusal.
    """
    if is_compiling():
        return None
    out: Tensor | None = _heed.sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return out


def attend_run(query: Tensor, key: Tensor, value: Tensor, run: _heed.KeyRun, fields: dict[str, Any]) -> Tensor | None:
    """The same on the run of keys that a mask's queries see; fields: of heed.attention."""
    if is_compiling():
        return None
    out: Tensor | None = _heed.attend_run(query, key, value, run, fields)
    return out


def _attend_any(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
                scale: float | None, enable_gqa: bool) -> Tensor:
    query, key, value = autocast(query, key, value)
    _check_inputs(query, key, value, attn_mask)
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask is given with is_causal; it must be None")
    if query.dim() == 2:
        return _attend_any(query[None], key[None], value[None], attn_mask, dropout_p, is_causal, scale, False)[0]
    if query.dim() == 3:
        mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        return _attend_any(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), mask, dropout_p, is_causal, scale,
                           False).squeeze(1)
    query, key, value = _broadcast(query, key, value, 0 if enable_gqa else 1)
    if query.dim() == 5:
        batch = query.shape[:2]
        mask = attn_mask
        if mask is not None and mask.dim() > 3:  # else the batch is not of its axes
            mask = mask.expand(*batch, *mask.shape[-3:]).flatten(0, 1)
        return _attend_any(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask, dropout_p, is_causal, scale,
                           enable_gqa).unflatten(0, batch)
    mask, bias = (attn_mask, None) if attn_mask is None or attn_mask.dtype == torch.bool else (None, attn_mask)
    return attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, bias, None, is_causal, scale, 0.0,
                  dropout_p).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None, causal: bool,
           scale: float | None, softcap: float, dropout_p: float) -> Tensor:
    """What the operator heed::attention computes, with gradients where PyTorch records them."""
    if not records_gradient(q, k, v, bias, sink):
        plain: Tensor = attention(q, k, v, mask, bias, sink, causal, scale, softcap, dropout_p)
        return plain
    seed = _draw_seed() if dropout_p > 0 else None
    if not runs_directly(q, k, v):
        out: Tensor = attention_forward(q, k, v, mask, bias, sink, seed, causal, scale, softcap, dropout_p)[0]
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
    if not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def runs_directly(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing is between a call and its kernel: no compiler, no mode of PyTorch's, no subclass of Tensor."""
    return (type(q) is type(k) is type(v) is Tensor and not is_compiling()
            and _dispatch_keys().raw_repr() in (_PLAIN, _INFERENCE))


def _broadcast(query: Tensor, key: Tensor, value: Tensor, head_axes: int) -> tuple[Tensor, Tensor, Tensor]:
    """All with the same axes of batch and, where heads are not grouped, of heads; an extent of 1 serves any."""
    axes = query.dim() - 3 + head_axes
    if query.shape[:axes] == key.shape[:axes] == value.shape[:axes]:
        return query, key, value
    full = [max(extents) for extents in zip(query.shape[:axes], key.shape[:axes], value.shape[:axes])]
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        for axis, (extent, other) in enumerate(zip(tensor.shape, full)):
            if extent not in (1, other):
                if axis == tensor.dim() - 3:
                    raise InvalidArgument(f"{name} has {extent} heads; it must have {other}, or enable_gqa be True")
                raise InvalidArgument(f"axis {axis} of {name} has {extent} elements; it must have {other}, or 1")
    query, key, value = (tensor.expand(*full, *tensor.shape[axes:]) for tensor in (query, key, value))
    return query, key, value


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested:
            raise Unsupported(f"{name} is a nested tensor; heed.attention takes packed sequences, with cu_seqlens_q and _kv")
        if tensor.dtype not in _DTYPES:
            raise Unsupported(f"{name} has elements of {tensor.dtype}; they must be float32, float16 or bfloat16")
        if tensor.dtype != query.dtype:
            raise InvalidArgument(f"{name} has elements of {tensor.dtype}; they must be {query.dtype}, as query's")
        if tensor.dim() not in (2, 3, 4, 5) or tensor.dim() != query.dim():
            raise Unsupported(f"{name} has {tensor.dim()} dimensions and query {query.dim()}; both must have as many, 2 to 5")
    if key.shape[-1] != query.shape[-1]:
        raise InvalidArgument(f"key has the head_dim {key.shape[-1]}; it must be query's, {query.shape[-1]}")
    if value.shape[-2] != key.shape[-2]:
        raise InvalidArgument(f"value has {value.shape[-2]} tokens; it must have key's {key.shape[-2]}")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise InvalidArgument(f"attn_mask has elements of {attn_mask.dtype}; they must be bool, float32 or {query.dtype}")


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _dense_or_broadcast(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dim() == 0 or tensor.stride(-1) == 0 else _dense(tensor)
