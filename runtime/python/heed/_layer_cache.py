"""heed.LayerCache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _arrays, _heed


class LayerCache:
    """Keys and values of growing sequences, made by Layer.make_cache. One call at a time.

    kv_lens: tokens of each sequence. append joins keys and values from elsewhere, read gives those that it holds: what
    decoders hand around as "past key values"."""

    def __init__(self, cache: _heed.LayerCache, like: Any):
        self._cache, self._like = cache, like

    @property
    def kv_lens(self) -> list[int]:
        return self._cache.kv_lens

    def append(self, k: Any, v: Any, lens: Sequence[int] | None = None, *, stream: Any = None) -> None:
        """Appends k, v [batch, len, num_kv_heads, head_dim or head_dim_v], of each sequence the first lens[b] tokens: as the
        layer makes them, after its projections, norms and rotation. Arrays of the layer's type; an int8 cache rounds them.
        Raises heed.OutOfMemory when too few pages are free, heed.InvalidArgument beyond the capacity; the cache is as before."""
        k, v = _arrays.without_gradient("k", k), _arrays.without_gradient("v", v)
        shape = _arrays.shape_of("k", k)
        counts = [shape[1] if len(shape) > 1 else 0] * len(self.kv_lens) if lens is None else _arrays.int32_array("lens", lens).tolist()
        with _arrays.launch(k, stream) as (handle, _):
            self._cache.append(k, v, counts, handle)

    def read(self, *, like: Any = None) -> tuple[Any, Any]:
        """Copies (k, v) [batch, longest kv_len, num_kv_heads, .], 0 after each sequence's own length; of int8 caches the
        numbers that the codes are for, in float32. like: an array whose framework they have, by default the weights'."""
        like = self._like if like is None else like
        in_torch = _arrays.framework(like) == "torch"
        device = like.device.index or 0 if in_torch and like.is_cuda else -1
        memory = self._cache.memory(not in_torch, device)
        take = sys.modules["torch"].from_dlpack if in_torch else np.from_dlpack
        lens = self.kv_lens
        table = memory.pop("page_table", None)
        blocks = {name: take(array) for name, array in memory.items()}
        found = []
        for name in ("k", "v"):
            rows = self._gathered(blocks[name], table, max(lens))
            if f"{name}_scale" in blocks:
                scale = self._gathered(blocks[f"{name}_scale"], table, max(lens))
                rows = rows.float() * scale[..., None] if in_torch else rows.astype(np.float32) * scale[..., None]
            for sequence, kv_len in enumerate(lens):
                rows[sequence, kv_len:] = 0
            found.append(rows if in_torch else self._typed(rows, like))
        return found[0], found[1]

    @staticmethod
    def _gathered(blocks: Any, table: Any, longest: int) -> Any:
        """A copy of [batch, longest, ...] of blocks [batch or num_pages, len, ...]."""
        if table is None:
            rows = blocks[:, :longest]
            return rows.clone() if hasattr(rows, "clone") else rows.copy()
        pages = np.maximum(table[:, :-(-longest // blocks.shape[1])], 0).astype(np.int64)  # those without tokens are cleared
        rows = blocks[pages.reshape(-1).tolist()] if pages.size > 0 else blocks[:0]
        return rows.reshape(pages.shape[0], pages.shape[1] * blocks.shape[1], *blocks.shape[2:])[:, :longest]

    @staticmethod
    def _typed(rows: Any, like: Any) -> Any:
        """bfloat16 comes as its bits."""
        return rows.view(like.dtype) if rows.dtype == np.uint16 else rows

    def reset(self) -> None:
        """Forgets all tokens."""
        self._cache.reset()

    def truncate(self, sequence: int, kv_len: int) -> None:
        """Forgets the tokens of a sequence from kv_len on."""
        self._cache.truncate(sequence, kv_len)

    def fork(self, from_: int, to: int) -> None:
        """Sequence `to` becomes a copy of sequence `from_`; pages are shared until written."""
        self._cache.fork(from_, to)
