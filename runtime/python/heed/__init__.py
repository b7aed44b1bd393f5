"""Attention kernels, generated ahead of time.

attention(q, k, v, ...)   softmax(q k^T) v with masks, windows, caches, on NumPy's arrays and any that speak DLPack
KVCache                   keys and values of growing sequences, contiguous or in pages
attention_probs           what attention makes of q and k: scores, or their softmax
rope, merge_states, linear  rotary embedding, attention over parts of the keys to attention over all, dense layers
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
from ._heed import LayerCache, __version__
from ._kv_cache import KVCache
from ._layer import Layer
from ._ops import LinearWeights, linear, merge_states, rope

__all__ = [
    "Error", "Internal", "InvalidArgument", "KVCache", "Layer", "LayerCache", "LinearWeights", "NoDevice", "OutOfMemory",
    "Unsupported", "WorkspaceTooSmall", "__version__", "attention", "attention_probs", "explain", "kernels", "linear",
    "merge_states", "rope", "save_case",
]


def kernels() -> list[dict[str, Any]]:
    """The rows of the kernel table, a dict of the fields of heed_kernel_info_t for each.

    name, phase ("prefill", "decode"), dtype, kv_dtype, head_dim and head_dim_v (0 = any), features (HEED_FEATURE_* bits),
    kv_storage ("contiguous", "paged": every storage), isa, row_block, kv_block, scratch_bytes, code_bytes, schedule,
    score_mod ("" for none); supported and unsupported_reason are about this machine.
    """
    return _heed.kernels()
