"""Attention kernels, generated ahead of time.

attention(q, k, v, ...)   softmax(q k^T) v with masks, windows, caches, on NumPy's arrays and any that speak DLPack
KVCache                   keys and values of growing sequences, contiguous or in pages
attention_probs           what attention makes of q and k: scores, or their softmax
rope, merge_states, linear  rotary embedding, attention over parts of the keys to attention over all, dense layers
attention_backward, linear_backward, dropout_mask  gradients; PyTorch records them by itself
mha_to_gqa, gqa_to_mha    heads of K's and V's weights, pooled and repeated
Layer                     projections, attention and cache, from weights or a safetensors file
save_case(path, q, k, v, ...)  the same call as a file, for the command heed
kernels(), explain(...)   the kernels of this build; which one a call would run, and why
heed.torch                scaled_dot_product_attention for PyTorch, with torch.compile
heed.transformers         attn_implementation="heed" for models of Hugging Face
"""

from __future__ import annotations

from typing import Any

from . import _heed
from ._attention import attention, attention_probs, explain
from ._case_file import save_case
from ._errors import Error, Internal, InvalidArgument, NoDevice, OutOfMemory, Unsupported, WorkspaceTooSmall
from ._gradients import (AttentionGradients, LinearGradients, attention_backward, dropout_mask, gqa_to_mha, linear_backward,
                         mha_to_gqa)
from ._heed import __version__
from ._kv_cache import KVCache
from ._layer import Layer
from ._layer_cache import LayerCache
from ._ops import LinearWeights, linear, merge_states, rope

__all__ = [
    "AttentionGradients", "Error", "Internal", "InvalidArgument", "KVCache", "Layer", "LayerCache", "LinearGradients", "LinearWeights",
    "NoDevice", "OutOfMemory", "Unsupported", "WorkspaceTooSmall", "__version__", "attention", "attention_backward",
    "attention_probs", "dropout_mask", "explain", "gqa_to_mha", "kernels", "linear", "linear_backward", "merge_states",
    "mha_to_gqa", "rope", "save_case",
]


def kernels() -> list[dict[str, Any]]:
    """The kernels of the table, a dict of the fields of heed_kernel_info for each.

    name, phase ("prefill", "decode"), dtype, kv_dtype, head_dim and head_dim_v (0 = any), features (HEED_FEATURE_* bits),
    kv_storage ("contiguous", "paged": every storage), isa, row_block, kv_block, scratch_bytes, code_bytes, schedule,
    score_mod ("" for none); supported and unsupported_reason are about this machine.
    """
    return _heed.kernels()
