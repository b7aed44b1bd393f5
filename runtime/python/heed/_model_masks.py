"""Masks of Hugging Face models as what they are: causal, a window, tokens of padding before and after each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import masking_utils

from . import _heed

_CAUSAL, _ALL = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
# The functions that transformers makes anew for each mask share the code of their kind.
_AND = masking_utils.and_masks().__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_WINDOW_BOTH = masking_utils.sliding_window_bidirectional_overlay(1).__code__


Runs = tuple[np.ndarray | None, np.ndarray | None]


class Part(NamedTuple):
    """A call of the kernel: some of the sequences and keys (None: all), with what it gets in addition."""

    sequences: slice | None
    keys: slice | None
    arrays: dict[str, np.ndarray]
    fields: dict[str, Any]

    def as_run(self, batch: int, kv_len: int) -> _heed.KeyRun:
        first, end, _ = slice(None).indices(kv_len) if self.keys is None else self.keys.indices(kv_len)
        lists = {name: array.tolist() for name, array in self.arrays.items()}
        windows = {name: self.fields.get(name, -1) for name in ("window_left", "window_right")}
        return _heed.KeyRun(batch=batch, kv_len=kv_len, first=first, count=end - first, causal=self.fields.get("causal", False),
                            q_offsets=lists.get("q_offsets", []), kv_lens=lists.get("kv_lens", []), **windows)

    def cut(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part's views of q, k, v, out and bias."""
        if self.sequences is None and self.keys is None:
            return arrays
        cut = dict(arrays)
        for name, tensor in arrays.items():
            if self.sequences is not None and name != "sink" and tensor.size(0) > 1:
                cut[name] = tensor = tensor[self.sequences]
            if self.keys is not None and name in ("k", "v"):
                cut[name] = tensor[:, :, self.keys]
            if self.keys is not None and name == "bias" and tensor.size(3) > 1:
                cut[name] = tensor[..., self.keys]
        return cut


WHOLE = [Part(None, None, {}, {})]


class Mask(Tensor):
    """A boolean mask [batch, 1, q_len, kv_len], true = may attend, that nobody has written yet: any operation of PyTorch's
    does. Query i has the position p(i) = i + first; it sees key j if (not causal or j <= p(i)) and
    p(i) - left <= j <= p(i) + right (-1: unlimited) and begins[b] <= j < ends[b] (None: no padding).
    """

    causal: bool
    left: int
    right: int
    first: int
    begins: np.ndarray | None
    ends: np.ndarray | None
    _write: Callable[[], Tensor]
    _dense: Tensor | None
    _parts: list[Part] | None
    _run: _heed.KeyRun | None

    @staticmethod
    def make(shape: tuple[int, ...], causal: bool, left: int, right: int, first: int, runs: Runs,
             write: Callable[[], Tensor]) -> Mask:
        mask: Mask = Tensor._make_wrapper_subclass(Mask, shape, dtype=torch.bool)  # type: ignore[attr-defined]
        mask.causal, mask.left, mask.right, mask.first = causal, left, right, first
        mask.begins, mask.ends = runs
        mask._write, mask._dense, mask._parts, mask._run = write, None, None, None
        return mask

    def dense(self) -> Tensor:
        if self._dense is None:
            self._dense = self._write()
        return self._dense

    def parts(self) -> list[Part]:
        """Calls that compute what the mask asks for; made once for all layers."""
        if self._parts is None:
            self._parts = [self._step()] if self.shape[2] == 1 else self._prefill()
        return self._parts

    def run(self) -> _heed.KeyRun | None:
        """The only part, for all sequences; None where there are several."""
        if self._parts is None:
            parts = self.parts()
            if len(parts) == 1 and parts[0].sequences is None:
                self._run = parts[0].as_run(self.shape[0], self.shape[3])
        return self._run

    def _step(self) -> Part:
        """One query sees one run of keys, which a window before it and a length are."""
        least = max(self.first - self.left, 0) if self.left >= 0 else 0
        most = self.shape[3]
        for end in (self.first + 1 if self.causal else most, self.first + self.right + 1 if self.right >= 0 else most):
            most = min(most, end)
        begins = np.full(self.shape[0], least, np.int32) if self.begins is None else np.maximum(self.begins, least)
        ends = np.full(self.shape[0], most, np.int32) if self.ends is None else np.minimum(self.ends, most)
        ends = np.maximum(ends, begins)
        keys = slice(int(begins.min()), max(int(ends.max()), int(begins.min())))
        arrays, fields = {}, {}
        if (begins != keys.start).any():
            arrays["q_offsets"], fields["window_left"] = begins - keys.start, 0
        if (ends != keys.stop).any():
            arrays["kv_lens"] = ends - keys.start
        return Part(None, None if keys == slice(0, self.shape[3]) else keys, arrays, fields)

    def _prefill(self) -> list[Part]:
        """Sequences side by side whose tokens begin at the same place are one call, on the keys from there on."""
        begins = [0] * self.shape[0] if self.begins is None else self.begins.tolist()
        bounds = [b for b in range(len(begins) + 1) if b in (0, len(begins)) or begins[b] != begins[b - 1]]
        return [self._group(slice(at, end), begins[at]) for at, end in zip(bounds, bounds[1:])]

    def _group(self, sequences: slice, begin: int) -> Part:
        arrays = {}
        first, count = self.first - begin, sequences.stop - sequences.start
        if first != 0:
            arrays["q_offsets"] = np.full(count, first, np.int32)
        if self.ends is not None:
            arrays["kv_lens"] = np.maximum(self.ends[sequences] - begin, 0)
        return Part(None if count == self.shape[0] else sequences, slice(begin, self.shape[3]) if begin > 0 else None, arrays,
                    {"causal": self.causal, "window_left": self.left, "window_right": self.right})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"heed mask of {tuple(self.shape)}: {self.dense()!r}"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: x.dense() if isinstance(x, Mask) else x, (args, kwargs or {}))
        return function(*args, **kwargs)


def make_mask(batch_size: int, q_length: int, kv_length: int, q_offset: int | Tensor = 0, kv_offset: int = 0,
              mask_function: Callable[..., Any] = _CAUSAL, attention_mask: Tensor | None = None,
              allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False, device: Any = "cpu",
              **options: Any) -> Tensor | None:
    """The function of transformers' AttentionMaskInterface: None where a module needs no mask, a Mask for the patterns
    above, and what "sdpa" would get for any other, on other devices and for compilers.
    """
    def write() -> Tensor:
        dense: Tensor = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False, device=device, **options)
        return dense

    pattern = None if torch.compiler.is_compiling() or torch.device(device).type != "cpu" else pattern_of(mask_function)
    runs = None if pattern is None else padding_runs(attention_mask, batch_size, kv_length, kv_offset)
    if pattern is None or runs is None:
        mask: Tensor | None = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip, device=device,
            **options)
        return mask
    causal, left, right = pattern
    first = int(q_offset) - kv_offset
    if left >= first + q_length - 1:
        left = -1
    if first + right >= kv_length - 1:
        right = -1
    if runs[0] is None and runs[1] is None and left < 0 and right < 0:
        shows_all = first + 1 >= kv_length and q_length == 1
        if causal and allow_is_causal_skip and (shows_all or (first == 0 and q_length == kv_length)):
            return None  # a causal module sees keys from the first one on
        if not causal and allow_is_bidirectional_skip:
            return None
    return Mask.make((batch_size, 1, q_length, kv_length), causal, left, right, first, runs, write)


def pattern_of(function: Callable[..., Any]) -> tuple[bool, int, int] | None:
    """causal, left, right of a mask function that transformers made; None for any other."""
    if function is _CAUSAL:
        return True, -1, -1
    if function is _ALL:
        return False, -1, -1
    if getattr(function, "__code__", None) is not _AND:
        return None
    parts = function.__closure__[0].cell_contents
    if len(parts) != 2:
        return None
    code = getattr(parts[0], "__code__", None)
    if code is _WINDOW and parts[1] is _CAUSAL:
        return True, parts[0].__closure__[0].cell_contents - 1, -1
    if code is _WINDOW_BOTH and parts[1] is _ALL:
        window = parts[0].__closure__[0].cell_contents
        return False, window, window
    return None


def padding_runs(attention_mask: Tensor | None, batch_size: int, kv_length: int, kv_offset: int) -> Runs | None:
    """Begin and end of each sequence's tokens among kv_length keys from kv_offset on, (None, None) where all are tokens;
    None where those of a sequence are not one run.
    """
    if attention_mask is None:
        return None, None
    tokens = attention_mask[:, kv_offset:kv_offset + kv_length].numpy()
    if tokens.shape[0] != batch_size or tokens.dtype != np.bool_:
        return None
    if tokens.shape[1] == kv_length and tokens.all():
        return None, None
    if tokens.shape[1] == 0:
        return None
    count = tokens.sum(1, dtype=np.int32)
    begins = tokens.argmax(1).astype(np.int32)
    ends = (tokens.shape[1] - tokens[:, ::-1].argmax(1)).astype(np.int32)
    ends[count == 0] = begins[count == 0] = 0
    if not np.array_equal(ends - begins, count):
        return None
    return (begins if begins.any() else None), (ends if (ends != kv_length).any() else None)
