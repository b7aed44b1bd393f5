"""Heed as the attention of Hugging Face models.

    heed.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed")
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._errors import Unsupported
from .torch import attention, refuse_gradients

NAME = "heed"


def register() -> None:
    """Makes attn_implementation="heed" known to transformers (4.53 or newer), with the boolean masks of "sdpa"."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                      dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
                      softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
                      **options: Any) -> tuple[Tensor, None]:
    """The function of transformers' AttentionInterface: query, key, value [batch, heads, len, head_dim] to
    [batch, q_len, num_heads, head_dim_v]. Without a mask a module that is causal sees keys from the first one on.
    """
    refuse_gradients(query=query, key=key, value=value, attention_mask=attention_mask, s_aux=s_aux,
                     position_bias=position_bias)
    if options.get("output_attentions"):
        raise Unsupported("output_attentions is True; attention weights need attn_implementation='eager'")
    if options.get("cache") is not None:
        raise Unsupported("cache is given, for continuous batching; it must be None")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = query.shape[2] > 1 and attention_mask is None and is_causal
    mask, bias = attention_mask, position_bias
    if mask is not None and mask.dtype != torch.bool:
        bias = mask if bias is None else mask + bias
        mask = None
    sink = None if s_aux is None else s_aux.detach().float()
    out = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, bias, sink, causal, scaling,
                    softcap or 0.0, dropout)
    return out, None
