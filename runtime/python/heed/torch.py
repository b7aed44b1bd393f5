"""Heed in PyTorch: the operator torch.ops.heed.attention, known to torch.compile, and scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ._arrays import refuse_gradient
from ._attention import attention as _attention
from ._errors import InvalidArgument, Unsupported

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@torch.library.custom_op("heed::attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None,
              sink: Tensor | None = None, causal: bool = False, scale: float | None = None, softcap: float = 0.0,
              dropout_p: float = 0.0) -> Tensor:
    """heed.attention on dense q [batch, q_len, num_heads, head_dim] as an operator of PyTorch's, inference only.

    Queries have the positions 0, 1, ... Tensors whose last axis has gaps are copied. Dropout's seed comes from PyTorch's
    default generator.
    """
    seed = int(torch.randint(2**63 - 1, (1,))) if dropout_p > 0 else None
    out: Tensor = _attention(_dense(q), _dense(k), _dense(v), mask=_dense_or_broadcast(mask), bias=_dense_or_broadcast(bias),
                             sink=sink, causal=causal, scale=scale, softcap=softcap, dropout_p=dropout_p, dropout_seed=seed)
    return out


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_args: object, **_options: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by Heed, for inference.

    query [batch, num_heads, q_len, head_dim], key and value [batch, num_kv_heads, kv_len, .], or all three without the
    axis of heads; float32, float16 or bfloat16; views by transpose are read in place. attn_mask: bool (true = may attend),
    or float32 or query's type, added to the logits; it broadcasts to [batch, num_heads, q_len, kv_len]. is_causal: query
    i sees keys 0..i. A query that sees no key gives 0.

    Raises heed.Unsupported for a tensor that requires a gradient while one is recorded, for nested tensors, other ranks
    and types; heed.InvalidArgument for shapes that do not fit.
    """
    _check_inputs(query, key, value, attn_mask)
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask is given with is_causal; it must be None")
    if query.dim() == 3:
        mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        return scaled_dot_product_attention(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), mask, dropout_p,
                                            is_causal, scale).squeeze(1)
    if not enable_gqa and key.shape[1] != query.shape[1]:
        raise InvalidArgument(f"key has {key.shape[1]} heads; it must have query's {query.shape[1]}, or enable_gqa be True")
    mask, bias = (attn_mask, None) if attn_mask is None or attn_mask.dtype == torch.bool else (None, attn_mask)
    out: Tensor = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, bias, None, is_causal,
                            scale, 0.0, dropout_p)
    return out.transpose(1, 2)


def refuse_gradients(**tensors: Tensor | None) -> None:
    """Unsupported, if PyTorch would record a gradient of one of them."""
    for name, tensor in tensors.items():
        refuse_gradient(name, tensor)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    refuse_gradients(query=query, key=key, value=value, attn_mask=attn_mask)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested:
            raise Unsupported(f"{name} is a nested tensor; heed.attention takes packed sequences, with cu_seqlens_q and _kv")
        if tensor.dtype not in _DTYPES:
            raise Unsupported(f"{name} has elements of {tensor.dtype}; they must be float32, float16 or bfloat16")
        if tensor.dim() not in (3, 4) or tensor.dim() != query.dim():
            raise Unsupported(f"{name} has {tensor.dim()} dimensions and query {query.dim()}; both must have 4, or 3")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise InvalidArgument(f"attn_mask has elements of {attn_mask.dtype}; they must be bool, float32 or {query.dtype}")


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _dense_or_broadcast(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dim() == 0 or tensor.stride(-1) == 0 else _dense(tensor)
