"""heed.Layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import _arrays, _heed
from ._errors import InvalidArgument
from ._heed import LayerCache
from ._keywords import LayerKeywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

ArrayT = TypeVar("ArrayT")


class Layer:
    """An attention layer: projections, heads, cache, output projection.

    Layer(weights, dim_in=..., num_heads=..., num_kv_heads=..., max_batch=..., max_q_len=..., max_kv_len=..., ...)

    weights: arrays by the names of heed_layer_weights, all float32, float16 or bfloat16 alike; they are packed, not kept.
        weight_layout "separate" (default): wq [num_heads * head_dim, dim_in], wk [num_kv_heads * head_dim, dim_memory],
        wv [num_kv_heads * head_dim_v, dim_memory], wo [dim_out, num_heads * head_dim_v]. "fused": wqkv [all rows, dim_in]
        and wo. "einsum": wq [num_heads, dim_in, head_dim], wk, wv likewise, wo [num_heads, dim_out, head_dim_v].
        Optional: bq, bk, bv, bqkv, bo; q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias; and float32 rope_cos,
        rope_sin [max_position, rotary_dim / 2], alibi_slopes and sink [num_heads].
    device: "cpu" (default) or "cuda", where the arrays of calls are; weights are on the host, PyTorch's on either. A layer on
        CUDA lives in the context of PyTorch's weights, or the current one; calls are asynchronous, on `stream` as of
        heed.attention, and take arrays that are not PyTorch's with out= and workspace=.
    Read-only in use: threads may share a layer, each with its own cache.
    """

    def __init__(self, weights: Mapping[str, Any], **config: Unpack[LayerKeywords]):
        named = {name: _arrays.without_gradient(name, weight) for name, weight in weights.items()}
        with _arrays.device_of(named.values() if config.get("device") == "cuda" else ()):
            if config.get("device") == "cuda":
                named = {name: _arrays.on_host(weight) for name, weight in named.items()}
            self._layer = _heed.Layer(dict(config), named)

    @classmethod
    def from_safetensors(cls, path: str | os.PathLike[str], names: Mapping[str, str], **config: Unpack[LayerKeywords]) -> Layer:
        """With weights of a safetensors file: names maps wq and so on to the names in the file."""
        tensors = _heed.stored_tensors(os.fspath(path), list(names.values()))
        return cls(dict(zip(names, tensors)), **config)

    def make_cache(self, batch: int, capacity: int, *, int8: bool = False, page_size: int | None = None,
                   num_pages: int | None = None) -> LayerCache:
        """A cache of `batch` sequences of up to `capacity` tokens; in pages when page_size is given.

        num_pages is by default enough for all sequences to be full. LayerCache: kv_lens, reset(),
        truncate(sequence, kv_len), fork(from_, to)."""
        fields = {"batch": batch, "capacity": capacity}
        if page_size is not None:
            if page_size < 1:
                raise InvalidArgument(f"page_size is {page_size}; it must be 1..2147483647")
            fields["page_size"] = page_size
            fields["num_pages"] = batch * -(-capacity // page_size) if num_pages is None else num_pages
        elif num_pages is not None:
            raise InvalidArgument(f"num_pages is {num_pages} without page_size; it must be None")
        return self._layer.make_cache(fields, int8)

    def prepare(self, cache: LayerCache, memory: Any, memory_lens: Any = None, *, workspace: Any = None,
                stream: Any = None) -> None:
        """Cross attention: projects memory [batch, memory_len, dim_memory] into the cache, for many steps."""
        lens = None if memory_lens is None else _arrays.int32_array("memory_lens", memory_lens)
        memory = _arrays.without_gradient("memory", memory)
        with _arrays.launch(memory, stream) as (handle, allocate):
            self._layer.prepare(cache, memory, lens, workspace, handle, allocate)

    def __call__(self, x: ArrayT, memory: Any = None, *, cache: LayerCache | None = None, q_lens: Any = None,
                 kv_lens: Any = None, key_padding: Any = None, mask: Any = None, bias: Any = None, out: Any = None,
                 probs: Any = None, training: bool = False, dropout_seed: int = 0, dropout_offset: int = 0,
                 workspace: Any = None, stream: Any = None) -> ArrayT:
        """y [batch, q_len, dim_out] of x [batch, q_len, dim_in], of x's framework; written to `out` when that is given.

        memory: [batch, memory_len, dim_memory], cross attention without a prepared cache. cache: the tokens of x join it
        first. q_lens, kv_lens: int [batch], valid tokens of x, valid keys without a cache. key_padding: uint8 or bool
        [batch, kv_len]; mask, bias: broadcast to [batch, num_heads, q_len, kv_len], kv_len being the longest sequence's
        with the tokens of this call. probs: an array of that shape, float32 or x's type, that takes the attention
        weights. All packed, in the weights' type. A call that raises leaves out, probs and the cache as they were."""
        shape = _arrays.shape_of("x", x)
        for name, array in (("out", out), ("probs", probs)):
            _arrays.check_writable(name, array)
        given = {"x": x, "out": out, "memory": memory, "key_padding": key_padding, "mask": mask, "bias": bias, "probs": probs,
                 "workspace": workspace}
        arrays = {name: _arrays.without_gradient(name, array) for name, array in given.items() if array is not None}
        for name, lens in (("q_lens", q_lens), ("kv_lens", kv_lens)):
            if lens is not None:
                arrays[name] = _arrays.int32_array(name, lens)
        fields = {"training": training, "dropout_seed": dropout_seed, "dropout_offset": dropout_offset}
        with _arrays.launch(x, stream) as (handle, allocate):
            result: ArrayT = _arrays.empty(x, (*shape[:-1], self._layer.dim_out)) if out is None else out
            self._layer.forward({**arrays, "out": result}, fields, cache, handle, allocate)
        if out is None:
            result = _arrays.finished(x, result)
        return result
