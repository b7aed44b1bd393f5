"""heed.attention."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from . import _arrays, _heed
from ._errors import InvalidArgument
from ._keywords import HEAD_ARRAYS, METADATA, CallKeywords
from ._masks import Meaning, joined, read_mask

if TYPE_CHECKING:
    from typing_extensions import Unpack

ArrayT = TypeVar("ArrayT")
PROBS_MODES = "scores", "softcap", "masked", "softmax"  # heed_probs_mode
ARRAYS = METADATA | HEAD_ARRAYS | {"mask", "bias", "k_scale", "v_scale", "device_status", "workspace"}


class Options(CallKeywords, total=False):
    """Keywords of attention; None is as if not given."""

    dropout_seed: int | None
    dropout_offset: int | None
    mask: Any
    bias: Any
    mask_means: Meaning | None
    k_scale: Any
    v_scale: Any
    device_status: Any
    workspace: Any
    score_mod: str | None
    score_buffers: Sequence[Any] | None


@overload
def attention(q: ArrayT, k: Any, v: Any, *, return_lse: Literal[True], out: Any = None, lse: Any = None,
              stream: Any = None, **options: Unpack[Options]) -> tuple[ArrayT, ArrayT]: ...


@overload
def attention(q: ArrayT, k: Any, v: Any, *, return_lse: Literal[False] = False, out: Any = None, lse: Any = None,
              stream: Any = None, **options: Unpack[Options]) -> ArrayT: ...


def attention(q: Any, k: Any, v: Any, *, return_lse: bool = False, out: Any = None, lse: Any = None, stream: Any = None,
              **options: Unpack[Options]) -> Any:
    """softmax(scale * q k^T + ...) v, without copies of the inputs. help(heed.CallKeywords) lists all keywords.

    q: [batch, q_len, num_heads, head_dim], or packed sequences [total_q, num_heads, head_dim] with cu_seqlens_q.
    k, v: [batch, kv_len, num_kv_heads, head_dim and head_dim_v]; packed [total_kv, ...] with cu_seqlens_kv; or pages
        [num_pages, page_size, num_kv_heads, ...] with page_table and kv_lens. num_kv_heads divides num_heads.
    Arrays are NumPy's, or of any framework that speaks DLPack (PyTorch, JAX): all on the CPU or all on one CUDA device;
    float32, float16 or bfloat16 (NumPy: of ml_dtypes); k and v also int8, with k_scale and v_scale. Any strides of 0 or
    more whose last one is 1: transpose views of [batch, num_heads, len, head_dim], and slices of a packed QKV, are fine.

    Returns out, shaped as q with v's last axis, of q's framework; with return_lse (out, lse): the natural logarithm of
    the softmax's denominator, float32 [batch, num_heads, q_len] or [num_heads, total_q]. `out=` and `lse=` are arrays to
    write instead of new ones. A query that sees no key gives 0 and -inf.

    Which keys query i sees, where p(i) is its position:
        position: "top_left", p(i) = i, the default; "bottom_right", i + kv_len - q_len; "explicit", i + q_offsets[b].
        causal: no key after p(i). window_left, window_right: as many keys before and after it, -1 = all.
        mask: broadcast to [batch, num_heads, q_len, kv_len], bool, uint8 or any integers: true, not 0 = may attend
            (mask_true_hides: hides). mask_means, in place of mask_true_hides: "attend", 1 = may attend; "hide", 1 = hidden;
            "add", it is added to the logits. Floats need mask_means, and must be 0 or 1 unless they are added.
        kv_lens: int [batch], keys of each sequence that are valid.
    What is added to a logit scale * q k^T (scale: 1/sqrt(head_dim) by default), after softcap * tanh(x / softcap):
        bias: float32 or q's type, broadcast as mask; -inf hides.
        alibi_slopes: float32 [num_heads], times j - p(i), or (alibi_symmetric) times -|j - p(i)|.
        sink: float32 [num_heads], a logit that joins the denominator.
    score_mod: the name of a score function of this build's, of heed_add_kernels(... SCORE_MOD); score_buffers: the int32 or
        float32 arrays that it reads, packed.
    Dropout: dropout_p with dropout_seed and dropout_offset, a function of these and the element's index.
    Lengths: cu_seqlens_q, cu_seqlens_kv: int [batch + 1] prefix sums; q_offsets: int [batch]; page_table: int
        [batch, max_pages_per_seq]; max_q_len, max_kv_len: the longest packed sequence, or of pages their capacity, by
        default as the arrays say. On CUDA all of them may be on the device (with device_status: int32 [1], set to
        the first fault there); packed sequences then need max_q_len and max_kv_len.
    How: num_splits, max_threads, batch_invariant (a sequence alone has the bits that it has in a batch).
    stream: CUDA, a torch.cuda.Stream or its number; by default PyTorch's current one. The call is asynchronous there.
        workspace: uint8 on the device, for arrays that are not PyTorch's. cuda_capability: 10 * major + minor.

    Gradients: PyTorch records them of q, k, v, bias and sink, by heed.attention_backward; lse is taken as a constant. Their
        bits depend neither on threads nor on repeats. Calls that have none (int8, pages, score_mod; alibi_slopes and
        temperature) compute, and raise heed.Unsupported in backward.

    Raises heed.InvalidArgument (a ValueError), heed.Unsupported (a NotImplementedError) and the other subclasses of
    heed.Error, before anything is written. Thread-safe; the interpreter's lock is free while it computes.
    """
    arrays, fields = split(q, k, v, options)
    if not isinstance(q, np.ndarray) and _arrays.detach(arrays):
        return _recorded(arrays, fields, out, lse, stream, return_lse)
    q_shape, v_shape = _arrays.shape_of("q", q), _arrays.shape_of("v", v)
    for name, array in (("out", out), ("lse", lse)):
        _arrays.check_writable(name, array)
    with _arrays.launch(q, stream) as (handle, allocate):
        arrays["out"] = result = _arrays.empty(q, (*q_shape[:-1], *v_shape[-1:])) if out is None else out
        logarithms = _arrays.empty(q, _arrays.lse_shape(q_shape), "float32") if return_lse and lse is None else lse
        if logarithms is not None:
            arrays["lse"] = logarithms
        _heed.attention(arrays, fields, handle, allocate)
    if out is None:
        result = _arrays.finished(q, result)
    if lse is None:
        logarithms = _arrays.finished(q, logarithms)
    return (result, logarithms) if return_lse else result


def _recorded(arrays: dict[str, Any], fields: dict[str, Any], out: Any, lse: Any, stream: Any, return_lse: bool) -> Any:
    for name, array in (("out", out), ("lse", lse)):
        if array is not None:
            raise InvalidArgument(f"{name} is given while PyTorch records gradients; it must be None")
    result, logarithms = importlib.import_module("heed._autograd").attention(arrays, fields, stream=stream)
    return (result, logarithms) if return_lse else result


def detached(arrays: dict[str, Any]) -> dict[str, Any]:
    """PyTorch exports no tensor that requires a gradient."""
    return {name: array.detach() if getattr(array, "requires_grad", False) else array for name, array in arrays.items()}


def explain(q: Any, k: Any, v: Any, *, return_lse: bool = False, **options: Unpack[Options]) -> str:
    """The plan that attention would run: the kernel and why, splits, workspace; each other candidate and why not."""
    arrays, fields = split(q, k, v, options)
    arrays = detached(arrays)
    q_shape, v_shape = _arrays.shape_of("q", q), _arrays.shape_of("v", v)
    arrays["out"] = _arrays.empty(q, (*q_shape[:-1], *v_shape[-1:]))
    if return_lse:
        arrays["lse"] = _arrays.empty(q, _arrays.lse_shape(q_shape), "float32")
    return _heed.explain(arrays, fields)


def attention_probs(q: ArrayT, k: Any, *, mode: Literal["scores", "softcap", "masked", "softmax"] = "softmax",
                    dtype: Literal["float32"] | None = None, out: Any = None, stream: Any = None,
                    **options: Unpack[Options]) -> ArrayT:
    """What attention makes of q and k [batch, num_heads, q_len, kv_len]: for looking into a model, not for running it.

    mode: "scores", scale * q k^T; "softcap", after softcap; "masked", after biases and masks, -inf where a key is hidden;
        "softmax", the weights before dropout, 0 where a key is hidden and for queries without keys.
    dtype: q's, or "float32". out: an array of one of both, to write instead. Other arguments and errors: as of attention,
        without score_mod.
    """
    if mode not in PROBS_MODES:
        raise InvalidArgument(f"mode is {mode!r}; it must be one of {', '.join(map(repr, PROBS_MODES))}")
    if dtype not in (None, "float32"):
        raise InvalidArgument(f"dtype is {dtype!r}; it must be 'float32' or None")
    if options.get("k_scale") is not None:
        options = {**options, "v_scale": options["k_scale"]}
    arrays, fields = split(q, k, k, options)
    arrays = {name: _arrays.without_gradient(name, array) for name, array in arrays.items()}
    _arrays.check_writable("out", out)
    with _arrays.launch(q, stream) as (handle, allocate):
        def empty(shape: tuple[int, ...]) -> Any:
            return _arrays.empty(q, shape, dtype)

        result: ArrayT = _heed.attention_probs(arrays, fields, PROBS_MODES.index(mode), out, empty, handle, allocate)
    return _arrays.finished(q, result) if out is None else result


def split(q: Any, k: Any, v: Any, options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays, metadata on the host as int32, masks as read_mask reads them, and the plain fields."""
    if options.get("score_buffers") is not None and options.get("score_mod") is None:
        raise InvalidArgument("score_buffers is given without score_mod; it must be None")
    arrays = {"q": q, "k": k, "v": v}
    fields = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in METADATA:
            arrays[name] = _arrays.int32_array(name, value)
        elif name in ARRAYS:
            arrays[name] = value
        elif name == "mask_means":
            pass
        elif name == "score_buffers":
            arrays.update((f"score_buffers[{n}]", buffer) for n, buffer in enumerate(value))
        else:
            fields[name] = value
    if "mask" in arrays:
        mask, added = read_mask("mask", arrays.pop("mask"), options.get("mask_means"), bool(fields.get("mask_true_hides")))
        if mask is not None:
            arrays["mask"] = mask
        if added is not None:
            arrays["bias"] = joined(added, arrays.get("bias"))
    if _arrays.framework(q) == "torch":
        capability = _arrays.capability(q)
        if capability is not None:
            fields.setdefault("cuda_capability", capability)
    return arrays, fields
