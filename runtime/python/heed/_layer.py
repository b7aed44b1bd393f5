"""heed.Layer."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from . import _arrays, _heed
from ._errors import InvalidArgument, Unsupported
from ._gradients import differentiate_layer
from ._keywords import LayerKeywords
from ._layer_cache import LayerCache
from ._layer_weights import Weights, is_module, of_module, of_multihead_attention, version_of
from ._masks import Meaning, joined, means_of_both, read_mask

if TYPE_CHECKING:
    from typing_extensions import Unpack

ArrayT = TypeVar("ArrayT")
WITHOUT_GRADIENT = "rope_cos", "rope_sin", "temperature", "alibi_slopes"
FIRST_SIZES = {"max_batch": 1, "max_q_len": 128, "max_kv_len": 128}


class Layer:
    """An attention layer: projections, heads, cache, output projection.

    Layer(weights, dim_in=..., num_heads=..., num_kv_heads=..., ...)

    weights: arrays by the names of heed_layer_weights, all float32, float16 or bfloat16 alike.
        weight_layout "separate" (default): wq [num_heads * head_dim, dim_in], wk [num_kv_heads * head_dim, dim_context],
        wv [num_kv_heads * head_dim_v, dim_context], wo [dim_out, num_heads * head_dim_v]. "fused": wqkv [all rows, dim_in]
        and wo. "einsum": wq [num_heads, dim_in, head_dim], wk, wv likewise, wo [num_heads, dim_out, head_dim_v].
        Optional: bq, bk, bv, bqkv, bo; q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias; and float32 rope_cos,
        rope_sin [max_position, rotary_dim / 2], and the arrays [num_heads] of HEAD_ARRAYS, alibi_slopes and sink among them.
        Or an nn.MultiheadAttention, which says dims, heads, dropout and its masks' convention (true hides: mask_true_hides);
        cross=True where its keys come from elsewhere. Without batch_first x, context and y are [len, batch, .] as its own.
    max_batch, max_q_len, max_kv_len: the largest calls, by default as large as calls come: the layer grows by itself.
    device: "cpu" (default) or "cuda", where the arrays of calls are; weights are on the host, PyTorch's on either. A layer on
        CUDA lives in the CUDA context of PyTorch's weights, or the current one; calls are asynchronous, on `stream` as of
        heed.attention, and take arrays that are not PyTorch's with out= and workspace=.
    Weights are packed. The arrays are kept, too, when the layer may grow or when they are parameters (of a module, or that
    require gradients): then each call packs them anew where PyTorch has written them since (by optimizers, load_state_dict;
    what goes past its version counter, as `.data`, needs refresh()).
    Read-only in use: threads may share a layer, each with its own cache.
    """

    def __init__(self, weights: Mapping[str, Any] | Any, **config: Unpack[LayerKeywords]):
        fields: dict[str, Any] = dict(config)
        if is_module(weights):
            self._len_first = not weights.batch_first if hasattr(weights, "batch_first") else False
            self._start(of_multihead_attention(weights, fields), fields, tracked=True)
        else:
            self._len_first = False
            given = dict(weights)
            tracked = any(getattr(weight, "requires_grad", False) for weight in given.values())
            self._start(lambda: given, fields, tracked)

    @classmethod
    def from_module(cls, module: Any, names: Mapping[str, str], **config: Unpack[LayerKeywords]) -> Layer:
        """With parameters of an nn.Module: names maps wq and so on to their names there, {"wq": "q_proj.weight", ...}."""
        layer = cls.__new__(cls)
        layer._len_first = False
        layer._start(of_module(module, names), dict(config), tracked=True)
        return layer

    def _start(self, weights: Weights, config: dict[str, Any], tracked: bool) -> None:
        self._config, self._tracked = config, tracked
        self._sizes = {name: size for name, size in FIRST_SIZES.items() if not config.get(name)}
        self._true_hides = bool(config.get("mask_true_hides", False))
        first = weights()
        self._like = next((array for array in first.values() if not isinstance(array, _heed.StoredTensor)), np.empty(0))
        self._weights: Weights | None = weights if tracked or self._sizes else None
        self._pack(first)

    def _pack(self, weights: Mapping[str, Any]) -> None:
        self._version = version_of(weights) if self._tracked else ()
        for name, weight in weights.items():
            if str(getattr(weight, "dtype", "float32")).rpartition(".")[2] not in ("float32", "float16", "bfloat16"):
                raise InvalidArgument(f"{name} has elements of {weight.dtype}; a layer's weights must be float32, float16 or bfloat16")
        named = {name: weight.detach() if hasattr(weight, "detach") else weight for name, weight in weights.items()}
        on_cuda = self._config.get("device") == "cuda"
        with _arrays.device_of(named.values() if on_cuda else ()):
            if on_cuda:
                named = {name: _arrays.on_host(weight) for name, weight in named.items()}
            self._layer = _heed.Layer({**self._config, **self._sizes}, named)

    def refresh(self) -> None:
        """Packs the weights anew, where they are kept."""
        if self._weights is not None:
            self._pack(self._weights())

    def _ready(self, **sizes: int) -> dict[str, Any]:
        """Serves calls of these sizes from now on; the weights, where they are parameters."""
        weights = self._weights() if self._weights is not None and self._tracked else {}
        grown = {name: 1 << (max(size, 1) - 1).bit_length() for name, size in sizes.items()
                 if name in self._sizes and size > self._sizes[name]}
        if grown or (self._tracked and version_of(weights) != self._version):
            assert self._weights is not None
            self._sizes = {**self._sizes, **{name: min(size, 2**31 - 1) for name, size in grown.items()}}
            self._pack(self._weights())
        return weights

    @classmethod
    def from_safetensors(cls, path: str | os.PathLike[str], names: Mapping[str, str], **config: Unpack[LayerKeywords]) -> Layer:
        """With weights of a safetensors file: names maps wq and so on to the names in the file."""
        tensors = _heed.stored_tensors(os.fspath(path), list(names.values()))
        return cls(dict(zip(names, tensors)), **config)

    def make_cache(self, batch: int, capacity: int, *, int8: bool = False, page_size: int | None = None,
                   num_pages: int | None = None) -> LayerCache:
        """A cache of `batch` sequences of up to `capacity` tokens; in pages when page_size is given.

        num_pages is by default enough for all sequences to be full."""
        fields = {"batch": batch, "capacity": capacity}
        if page_size is not None:
            if page_size < 1:
                raise InvalidArgument(f"page_size is {page_size}; it must be 1..2147483647")
            fields["page_size"] = page_size
            fields["num_pages"] = batch * -(-capacity // page_size) if num_pages is None else num_pages
        elif num_pages is not None:
            raise InvalidArgument(f"num_pages is {num_pages} without page_size; it must be None")
        if 0 < capacity < 2**31:
            self._ready(max_batch=batch, max_kv_len=capacity)
        return LayerCache(self._layer.make_cache(fields, int8), self._like)

    def prepare(self, cache: LayerCache, context: Any, context_lens: Any = None, *, workspace: Any = None,
                stream: Any = None) -> None:
        """Cross attention: projects context [batch, context_len, dim_context] into the cache, for many steps."""
        lens = None if context_lens is None else _arrays.int32_array("context_lens", context_lens)
        context = _arrays.packed(self._batch_first(_arrays.without_gradient("context", context)))
        shape = _arrays.shape_of("context", context)
        if len(shape) == 3:
            self._ready(max_batch=shape[0], max_kv_len=shape[1])
        with _arrays.launch(context, stream) as (handle, allocate):
            self._layer.prepare(cache._cache, context, lens, workspace, handle, allocate)

    @overload
    def __call__(self, x: ArrayT, context: Any = None, *, return_past: Literal[True], cache: LayerCache | None = None,
                 past: tuple[Any, Any] | None = None, q_lens: Any = None, kv_lens: Any = None, cu_seqlens: Any = None,
                 key_padding: Any = None, mask: Any = None, mask_means: Meaning | None = None, bias: Any = None, out: Any = None,
                 probs: Any = None, training: bool = False, dropout_seed: int = 0, dropout_offset: int = 0,
                 workspace: Any = None, stream: Any = None) -> tuple[ArrayT, tuple[Any, Any]]: ...

    @overload
    def __call__(self, x: ArrayT, context: Any = None, *, return_past: Literal[False] = False, cache: LayerCache | None = None,
                 past: tuple[Any, Any] | None = None, q_lens: Any = None, kv_lens: Any = None, cu_seqlens: Any = None,
                 key_padding: Any = None, mask: Any = None, mask_means: Meaning | None = None, bias: Any = None, out: Any = None,
                 probs: Any = None, training: bool = False, dropout_seed: int = 0, dropout_offset: int = 0,
                 workspace: Any = None, stream: Any = None) -> ArrayT: ...

    def __call__(self, x: Any, context: Any = None, *, return_past: bool = False, cache: LayerCache | None = None,
                 past: tuple[Any, Any] | None = None, q_lens: Any = None, kv_lens: Any = None, cu_seqlens: Any = None,
                 key_padding: Any = None, mask: Any = None, mask_means: Meaning | None = None, bias: Any = None, out: Any = None,
                 probs: Any = None, training: bool = False, dropout_seed: int = 0, dropout_offset: int = 0,
                 workspace: Any = None, stream: Any = None) -> Any:
        """y [batch, q_len, dim_out] of x [batch, q_len, dim_in], of x's framework; written to `out` when that is given. One
        sequence may go without the axis of batch: x [q_len, dim_in], context and key_padding alike.

        context: [batch, context_len, dim_context], cross attention without a prepared cache. cache: the tokens of x join it
        first. past: (k, v) [batch, past_len, num_kv_heads, .] of earlier tokens, as return_past gave them: with it the result
        is (y, (k, v)), with the tokens of x; both copy all keys at each call, which a cache does not.
        q_lens, kv_lens: int [batch], valid tokens of x, valid keys without a cache. cu_seqlens: int [batch + 1],
        prefix sums of lengths: x is [total, dim_in] and y [total, dim_out], the sequences end to end, without padding;
        self attention without cache, q_lens, kv_lens, key_padding and probs. key_padding: [batch, kv_len]; mask, bias: broadcast
        to [batch, num_heads, q_len, kv_len], kv_len being the longest sequence's with the tokens of this call; a mask may be
        [batch * num_heads, q_len, kv_len]. Masks are of any type; mask_means says what of both, as of heed.attention, by default
        what mask_true_hides says, as of bools beside floats that are added. probs: an array of the scores' shape, float32 or
        x's type, that takes the attention weights. All in the weights' type; out and probs packed, views of others are copied.
        A call that raises leaves out, probs and the cache as they were.
        Gradients: PyTorch records them of x, context, bias and of weights that require them; deterministic, by Layer.backward.
        Calls with a cache, past or cu_seqlens compute, and raise heed.Unsupported in backward."""
        for name, array in (("out", out), ("probs", probs)):
            _arrays.check_writable(name, array)
        if self._len_first:
            x, context, out = (self._batch_first(array) for array in (x, context, out))
        shape = _arrays.shape_of("x", x)
        unbatched = len(shape) == 2 and cu_seqlens is None
        if unbatched:
            shape = (1, *shape)
            x, context, key_padding, out = (array if array is None else array[None] for array in (x, context, key_padding, out))
        if past is not None or return_past:
            cache = self._cache_of(past, cache, shape)
        arrays = self._arrays(x, context, q_lens, kv_lens, cu_seqlens, key_padding, mask, mask_means, bias)
        for name, array in (("probs", probs), ("workspace", workspace)):
            if array is not None:
                arrays[name] = array
        weights = self._ready(**self._sizes_of(shape, arrays, cache)) if self._sizes or self._tracked else {}
        fields = {"training": training, "dropout_seed": dropout_seed, "dropout_offset": dropout_offset}
        native = None if cache is None else cache._cache
        if _arrays.detach(arrays) or (weights and _arrays.records_gradient(*weights.values())):
            if out is not None:
                raise InvalidArgument("out is given while PyTorch records gradients; it must be None")
            result = self._recorded(arrays, fields, weights, native, stream)
        else:
            with _arrays.launch(x, stream) as (handle, allocate):
                result = _arrays.empty(x, (*shape[:-1], self._layer.dim_out)) if out is None else out
                self._layer.forward({**arrays, "out": result}, fields, native, handle, allocate)
            if out is None:
                result = _arrays.finished(x, result)
        if unbatched:
            result = result[0]
        elif self._len_first and len(shape) == 3:
            result = result.transpose(0, 1)
        return (result, cache.read(like=x)) if return_past and cache is not None else result

    def backward(self, dy: Any, x: Any, context: Any = None, *, wanted: Collection[str] | None = None, q_lens: Any = None,
                 kv_lens: Any = None, key_padding: Any = None, mask: Any = None, mask_means: Meaning | None = None, bias: Any = None,
                 training: bool = False, dropout_seed: int = 0, dropout_offset: int = 0, stream: Any = None) -> dict[str, Any]:
        """The gradients of a call without a cache, by name, from dy, that of its y; the activations are computed anew.

        wanted: names among "x", "context", "bias" and those of the weights; by default all but slopes, temperature and RoPE
        tables, which have none. Sums are in float32; the bits depend neither on threads nor on repeats."""
        dy, x, context = (self._batch_first(array) for array in (dy, x, context))
        arrays = self._arrays(x, context, q_lens, kv_lens, None, key_padding, mask, mask_means, bias)
        self._ready(**self._sizes_of(_arrays.shape_of("x", x), arrays, None))
        if self._weights is None:
            raise InvalidArgument("the layer has max_batch, max_q_len and max_kv_len and so does not keep its weights; backward needs them")
        if any(isinstance(weight, _heed.StoredTensor) for weight in self._weights().values()):
            raise Unsupported("the layer's weights are of a file; backward needs them as arrays")
        weights = {name: weight for name, weight in self._weights().items() if name not in WITHOUT_GRADIENT}
        inputs = [name for name in ("x", "context", "bias") if name in arrays]
        for name in wanted or ():
            if name not in inputs and name not in weights:
                raise InvalidArgument(f"wanted has {name!r}; it must be one of {', '.join((*inputs, *weights))}")
        if wanted is not None:
            inputs, weights = [n for n in inputs if n in wanted], {n: w for n, w in weights.items() if n in wanted}
        arrays = {name: _arrays.without_gradient(name, array) for name, array in arrays.items()}
        fields = {"training": training, "dropout_seed": dropout_seed, "dropout_offset": dropout_offset}
        found = differentiate_layer(self._layer, arrays, fields, dy, inputs, weights, stream)
        if self._len_first:
            found.update({name: found[name].transpose(0, 1) for name in ("x", "context") if name in found})
        return found

    def _batch_first(self, array: Any) -> Any:
        """For the tensors of a module without batch_first."""
        if not self._len_first or array is None or len(getattr(array, "shape", ())) != 3:
            return array
        return _arrays.packed(array.transpose(0, 1) if _arrays.framework(array) == "torch" else array.swapaxes(0, 1))

    def _cache_of(self, past: tuple[Any, Any] | None, cache: LayerCache | None, shape: tuple[int, ...]) -> LayerCache:
        if cache is not None or len(shape) != 3:
            raise InvalidArgument("past or return_past is given with a cache, or x is not [batch, q_len, dim_in]; the cache must be None")
        past_len = 0 if past is None else int(past[0].shape[1])
        made = self.make_cache(shape[0], max(past_len + shape[1], 1))
        if past is not None:
            made.append(*past)
        return made

    def _arrays(self, x: Any, context: Any, q_lens: Any, kv_lens: Any, cu_seqlens: Any, key_padding: Any, mask: Any,
                means: str | None, bias: Any) -> dict[str, Any]:
        shape: tuple[int, ...] = getattr(mask, "shape", ())
        heads = self._config.get("num_heads", 0)
        if len(shape) == 3 and shape[0] != heads and shape[0] == _arrays.shape_of("x", x)[0] * heads:
            mask = mask.reshape(-1, heads, *shape[1:])
        means_of_padding, means_of_mask = means_of_both(means, key_padding, mask)
        if key_padding is not None:
            key_padding, added = read_mask("key_padding", key_padding, means_of_padding, self._true_hides)
            if added is not None:
                bias = joined(added[:, None, None, :], bias)
        if mask is not None:
            mask, added = read_mask("mask", mask, means_of_mask, self._true_hides)
            bias = joined(added, bias)
        arrays = {"x": _arrays.packed(x)}
        for name, array in (("context", context), ("key_padding", key_padding)):
            if array is not None:
                arrays[name] = _arrays.packed(array)
        for name, array in (("mask", mask), ("bias", bias)):
            if array is not None:
                arrays[name] = array
        for name, lens in (("q_lens", q_lens), ("kv_lens", kv_lens), ("cu_seqlens", cu_seqlens)):
            if lens is not None:
                arrays[name] = _arrays.int32_array(name, lens)
        return arrays

    def _sizes_of(self, shape: tuple[int, ...], arrays: dict[str, Any], cache: LayerCache | None) -> dict[str, int]:
        """As far as shapes tell; those that do not fit are refused later."""
        if not self._sizes or len(shape) < 2:
            return {}
        batch, q_len = shape[0], shape[1]
        if "cu_seqlens" in arrays and not _arrays.is_on_cuda(arrays["cu_seqlens"]):
            sums = arrays["cu_seqlens"].astype(np.int64)
            batch, q_len = max(len(sums) - 1, 0) if sums.ndim == 1 else 0, int(np.diff(sums).max(initial=0))
        kv_len = q_len
        if "context" in arrays:
            kv_len = (*arrays["context"].shape, 0, 0)[1]
        return {"max_batch": batch, "max_q_len": q_len, "max_kv_len": kv_len if cache is None else 0}

    def _recorded(self, arrays: dict[str, Any], fields: dict[str, Any], weights: dict[str, Any], cache: Any, stream: Any) -> Any:
        autograd = importlib.import_module("heed._autograd")
        tensors = {name: array for name, array in arrays.items() if _arrays.framework(array) == "torch" and name not in ("probs", "workspace")}
        others = {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in arrays.items() if name not in tensors}
        trained = {name: weight for name, weight in weights.items() if getattr(weight, "requires_grad", False)}
        call = autograd.LayerCall(self._layer, [*tensors, *trained], len(trained), others, fields, cache, stream)
        return autograd.layer(call, [*tensors.values(), *trained.values()])
