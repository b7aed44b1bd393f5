"""The extension module: arguments by name, checked there."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str
MAX_HEAD_DIM: int

def attention(
    arrays: dict[str, Any], fields: dict[str, Any], stream: int = 0, allocate: Callable[[int], Any] | None = None
) -> None: ...
def num_calls() -> int: ...
def set_plain_keys(plain: int, inference: int) -> None: ...

class KeyRun:
    def __init__(
        self,
        batch: int,
        kv_len: int,
        first: int,
        count: int,
        causal: bool,
        window_left: int,
        window_right: int,
        q_offsets: list[int],
        kv_lens: list[int],
    ) -> None: ...

def sdpa(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any: ...
def attend_run(
    query: Any,
    key: Any,
    value: Any,
    run: KeyRun,
    fields: dict[str, Any],
) -> Any: ...
def attention_backward(
    arrays: dict[str, Any],
    fields: dict[str, Any],
    gradients: dict[str, Any],
    stream: int = 0,
    allocate: Callable[[int], Any] | None = None,
) -> None: ...
def linear_backward(
    arrays: dict[str, Any],
    num_rows: int,
    dim_in: int,
    dim_out: int,
    stream: int = 0,
    allocate: Callable[[int], Any] | None = None,
) -> None: ...
def dropout_mask(dropout_p: float, seed: int, offset: int, keep: Any) -> None: ...
def convert_heads(mha: Any, gqa: Any, num_heads: int, num_kv_heads: int, expands: bool) -> None: ...
def check_call(arrays: dict[str, Any], fields: dict[str, Any]) -> None: ...
def explain(arrays: dict[str, Any], fields: dict[str, Any]) -> str: ...
def attention_probs(
    arrays: dict[str, Any],
    fields: dict[str, Any],
    mode: int,
    probs: Any,
    empty: Callable[[tuple[int, ...]], Any],
    stream: int = 0,
    allocate: Callable[[int], Any] | None = None,
) -> Any: ...
def rope(x: Any, cos: Any, sin: Any, positions: Any, out: Any, interleaved: bool, stream: int = 0) -> None: ...
def merge_states(
    outs: Sequence[Any], lses: Sequence[Any], sink: Any, out: Any, lse: Any, stream: int = 0
) -> None: ...
def kernels() -> list[dict[str, Any]]: ...
def kv_append(
    arrays: dict[str, Any], k_new: Any, v_new: Any, new_lens: Sequence[int], stream: int = 0
) -> None: ...
def kv_copy(arrays: dict[str, Any], from_: int, to: int, begin: int, count: int, stream: int = 0) -> None: ...
def stored_tensors(path: str, names: Sequence[str]) -> list[StoredTensor]: ...

class LinearWeights:
    def __init__(self, weight: Any, bias: Any = None) -> None: ...
    def multiply(self, x: Any, out: Any, stream: int = 0) -> None: ...
    @property
    def dim_in(self) -> int: ...
    @property
    def dim_out(self) -> int: ...

class StoredTensor:
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...

class LayerCache:
    @property
    def kv_lens(self) -> list[int]: ...
    def append(self, k: Any, v: Any, new_lens: Sequence[int], stream: int = 0) -> None: ...
    def memory(self, bits: bool, cuda_device: int) -> dict[str, Any]: ...
    def reset(self) -> None: ...
    def truncate(self, sequence: int, kv_len: int) -> None: ...
    def fork(self, from_: int, to: int) -> None: ...

class Layer:
    def __init__(self, fields: dict[str, Any], weights: dict[str, Any]) -> None: ...
    def make_cache(self, fields: dict[str, Any], int8: bool) -> LayerCache: ...
    def forward(
        self,
        arrays: dict[str, Any],
        fields: dict[str, Any],
        cache: LayerCache | None,
        stream: int = 0,
        allocate: Callable[[int], Any] | None = None,
    ) -> None: ...
    def backward(
        self,
        arrays: dict[str, Any],
        fields: dict[str, Any],
        gradients: dict[str, Any],
        stream: int = 0,
        allocate: Callable[[int], Any] | None = None,
    ) -> None: ...
    def prepare(
        self,
        cache: LayerCache,
        context: Any,
        context_lens: Any,
        workspace: Any,
        stream: int = 0,
        allocate: Callable[[int], Any] | None = None,
    ) -> None: ...
    @property
    def dim_out(self) -> int: ...
