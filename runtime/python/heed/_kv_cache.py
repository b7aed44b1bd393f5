"""heed.KVCache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _heed
from ._attention import Options, attention
from ._errors import InvalidArgument, OutOfMemory

if TYPE_CHECKING:
    from typing_extensions import Unpack


class KVCache:
    """Keys and values of `batch` sequences of up to `capacity` tokens, grown by append and read by attention.

    Contiguous: k [batch, capacity, num_kv_heads, head_dim]. With page_size: pages k [num_pages, page_size, ...], handed
    out as sequences grow and shared by forks until one of them writes; num_pages is by default enough for all to be full.
    v alike, with head_dim_v (by default head_dim). In memory head by head.

    dtype: "float32", "float16", "bfloat16" (NumPy: with ml_dtypes), or "int8" with a float32 scale per token and head,
    k_scale and v_scale. like: an array whose framework and device the cache shall have; NumPy by default.
    kv_lens (int32 [batch]) and page_table (int32 [batch, max_pages_per_seq], -1 = none) are on the host.
    One call at a time.
    """

    def __init__(self, batch: int, capacity: int, num_kv_heads: int, head_dim: int, head_dim_v: int | None = None, *,
                 dtype: str = "float32", page_size: int | None = None, num_pages: int | None = None, like: Any = None):
        _check_counts(batch=batch, capacity=capacity, num_kv_heads=num_kv_heads, head_dim=head_dim,
                      head_dim_v=head_dim if head_dim_v is None else head_dim_v,
                      page_size=1 if page_size is None else page_size, num_pages=1 if num_pages is None else num_pages)
        if dtype not in ("float32", "float16", "bfloat16", "int8"):
            raise InvalidArgument(f"dtype is {dtype!r}; it must be 'float32', 'float16', 'bfloat16' or 'int8'")
        if page_size is None and num_pages is not None:
            raise InvalidArgument(f"num_pages is {num_pages} without page_size; it must be None")
        self.capacity, self.page_size = capacity, page_size
        self.kv_lens = np.zeros(batch, np.int32)
        self.page_table: np.ndarray | None = None
        blocks, block_len = batch, capacity
        if page_size is not None:
            per_sequence = -(-capacity // page_size)
            blocks, block_len = batch * per_sequence if num_pages is None else num_pages, page_size
            self.page_table = np.full((batch, per_sequence), -1, np.int32)
            self._free = list(range(blocks - 1, -1, -1))
            self._users = [0] * blocks
        like = np.empty(0, np.float32) if like is None else like
        if dtype == "bfloat16" and _arrays.framework(like) == "numpy":
            import ml_dtypes  # which makes NumPy know the name

            dtype = ml_dtypes.bfloat16
        heads = (blocks, num_kv_heads, block_len)
        self.k = _arrays.empty(like, (*heads, head_dim), dtype).swapaxes(1, 2)
        self.v = _arrays.empty(like, (*heads, head_dim if head_dim_v is None else head_dim_v), dtype).swapaxes(1, 2)
        self.k_scale = self.v_scale = None
        if dtype == "int8":
            self.k_scale, self.v_scale = (_arrays.empty(like, tuple(self.k.shape[:3]), "float32") for _ in range(2))

    def append(self, k_new: Any, v_new: Any, new_lens: Sequence[int] | None = None, *, stream: Any = None) -> None:
        """Appends k_new, v_new [batch, new_len, num_kv_heads, .], of each sequence the first new_lens[b] tokens.

        float32, float16 or bfloat16; the cache's type, unless that is int8: then they are rounded to codes with
        scale = max|x| / 127. Raises OutOfMemory when too few pages are free, InvalidArgument beyond the capacity; the
        cache then is as before.
        """
        k_new, v_new = _arrays.without_gradient("k_new", k_new), _arrays.without_gradient("v_new", v_new)
        batch, new_len = len(self.kv_lens), (*_arrays.shape_of("k_new", k_new), 0, 0)[1]
        lens = np.full(batch, new_len) if new_lens is None else np.asarray(new_lens)
        if lens.shape != (batch,) or (batch > 0 and not 0 <= lens.min() <= lens.max() <= new_len):
            raise InvalidArgument(f"new_lens is {lens.tolist()}; it must be {batch} numbers, each 0..{new_len}")
        total = self.kv_lens + lens
        if batch > 0 and total.max() > self.capacity:
            raise InvalidArgument(f"kv_lens would be {total.tolist()}; they may be {self.capacity} at most, the capacity")
        with _arrays.launch(self.k, stream) as (handle, _):
            try:
                self._reserve(lens, handle)
                _heed.kv_append(self._as_arguments(), k_new, v_new, lens.tolist(), handle)
            except BaseException:
                for sequence in range(batch):
                    self.truncate(sequence, int(self.kv_lens[sequence]))
                raise

    def attention(self, q: Any, **options: Unpack[Options]) -> Any:
        """heed.attention of q over the cache; position is by default "bottom_right": q's last token is the newest."""
        if options.get("position") is None and options.get("q_offsets") is None:
            options["position"] = "bottom_right"
        scales = {} if self.k_scale is None else {"k_scale": self.k_scale, "v_scale": self.v_scale}
        table = {} if self.page_table is None else {"page_table": self.page_table}
        return attention(q, self.k, self.v, kv_lens=self.kv_lens, **scales, **table, **options)  # type: ignore[call-overload]

    def reset(self) -> None:
        """Forgets all tokens."""
        for sequence in range(len(self.kv_lens)):
            self.truncate(sequence, 0)

    def truncate(self, sequence: int, kv_len: int) -> None:
        """Forgets the tokens of a sequence from kv_len on."""
        self._check_sequence("sequence", sequence)
        if not 0 <= kv_len <= self.kv_lens[sequence]:
            raise InvalidArgument(f"kv_len is {kv_len}; it must be 0..{self.kv_lens[sequence]}")
        self.kv_lens[sequence] = kv_len
        if self.page_table is None:
            return
        pages = self.page_table[sequence]
        for index in range(self._pages(kv_len), len(pages)):
            if pages[index] >= 0:
                self._release(int(pages[index]))
                pages[index] = -1

    def fork(self, from_: int, to: int, *, stream: Any = None) -> None:
        """Sequence `to` becomes a copy of sequence `from_`; pages are shared until written."""
        self._check_sequence("from_", from_)
        self._check_sequence("to", to)
        if from_ == to:
            return
        self.truncate(to, 0)
        kv_len = int(self.kv_lens[from_])
        if self.page_table is not None:
            self.page_table[to] = self.page_table[from_]
            for page in self.page_table[to, :self._pages(kv_len)]:
                self._users[page] += 1
        elif kv_len > 0:
            with _arrays.launch(self.k, stream) as (handle, _):
                _heed.kv_copy(self._as_arguments(), from_, to, 0, kv_len, handle)
        self.kv_lens[to] = kv_len

    def _pages(self, tokens: int) -> int:
        assert self.page_size is not None
        return -(-tokens // self.page_size)

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)

    def _reserve(self, new_lens: np.ndarray, stream: int) -> None:
        """Hands out pages for the new tokens; a shared page that is written to is copied, except for its last user."""
        if self.page_table is None:
            return
        for sequence, new_len in enumerate(new_lens):
            kv_len, pages = int(self.kv_lens[sequence]), self.page_table[sequence]
            if new_len == 0:
                continue
            held, filled = self._pages(kv_len), kv_len % self.page_size  # type: ignore[operator]
            if filled > 0 and self._users[pages[held - 1]] > 1:
                page = self._take()
                _heed.kv_copy(self._as_arguments(), int(pages[held - 1]), page, 0, filled, stream)
                self._release(int(pages[held - 1]))
                pages[held - 1] = page
            for index in range(held, self._pages(kv_len + int(new_len))):
                pages[index] = self._take()

    def _take(self) -> int:
        if not self._free:
            raise OutOfMemory(f"all {len(self._users)} pages of the cache are in use")
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _as_arguments(self) -> dict[str, Any]:
        arrays = {"k": self.k, "v": self.v, "k_scale": self.k_scale, "v_scale": self.v_scale, "kv_lens": self.kv_lens,
                  "page_table": self.page_table}
        return {name: array for name, array in arrays.items() if array is not None}

    def _check_sequence(self, name: str, sequence: int) -> None:
        if not 0 <= sequence < len(self.kv_lens):
            raise InvalidArgument(f"{name} is {sequence}; it must be 0..{len(self.kv_lens) - 1}")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 2**31:
            raise InvalidArgument(f"{name} is {count!r}; it must be an integer, 1..2147483647")
