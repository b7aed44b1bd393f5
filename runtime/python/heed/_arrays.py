"""What depends on the framework that an array is of: new arrays, streams, metadata."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from ._errors import InvalidArgument, Unsupported

CUDA = 2  # DLPack
NO_TANGENTS = "Heed has gradients, no forward-mode derivatives (torch.func.jvp, jacfwd, hessian)"
_thread = threading.local()


def framework(array: Any) -> str:
    """"numpy", "torch", "jax", or "" for any other."""
    root = type(array).__module__.partition(".")[0]
    return {"numpy": "numpy", "torch": "torch", "jax": "jax", "jaxlib": "jax"}.get(root, "")


def shape_of(name: str, array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape") or not hasattr(array, "__dlpack__"):
        kind = type(array).__name__
        raise InvalidArgument(f"{name} is a {kind}; it must be an array: NumPy's, or one that speaks DLPack")
    return tuple(array.shape)


def is_on_cuda(array: Any) -> bool:
    if framework(array) == "torch":
        return bool(array.is_cuda)
    return hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == CUDA


def empty(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """A new array for Heed to write, of like's framework (NumPy for JAX, see finished), device and, by default, type."""
    kind = framework(like)
    if kind == "torch":
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype)) if dtype else like.new_empty(shape)
    if kind == "numpy" or (kind == "jax" and not is_on_cuda(like)):
        return np.empty(shape, dtype or like.dtype)
    raise Unsupported(f"no arrays like a {type(like).__name__} on DLPack's device {like.__dlpack_device__()} are made here; "
                      f"results must be given, as out, and CUDA's workspace as workspace")


def zeros(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    result = empty(like, shape, dtype)
    result[...] = 0
    return result


def _strides(array: Any) -> tuple[int, ...] | None:
    """In elements or bytes; None for frameworks whose arrays are packed."""
    if framework(array) == "torch":
        return tuple(array.stride())
    return tuple(array.strides) if isinstance(array, np.ndarray) else None


def same_layout(a: Any, b: Any) -> bool:
    """Whether elements of arrays of one shape and type have the same strides."""
    of_a, of_b = _strides(a), _strides(b)
    if of_a is None or of_b is None:
        return of_a == of_b
    return all(n < 2 or s == t for n, s, t in zip(a.shape, of_a, of_b))


def with_twin(array: Any) -> tuple[Any, Any]:
    """The array and a new one of the same layout to write; a copy of the array where it has gaps or repeats elements."""
    kind = framework(array)
    if kind not in ("torch", "numpy"):
        return array, empty(array, tuple(array.shape))
    make = sys.modules["torch"].empty_like if kind == "torch" else np.empty_like
    twin = make(array)
    if not same_layout(twin, array):
        copy = make(array)
        copy[...] = array
        array = copy
    return array, twin


def packed(array: Any) -> Any:
    """The array, or a copy of it without gaps."""
    if framework(array) == "torch":
        return array.contiguous()
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array


def lse_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of lse, from that of q or out."""
    return (*shape[:-3], shape[-2], shape[-3]) if len(shape) >= 3 else shape


def finished(like: Any, array: Any) -> Any:
    """What empty gave, written by now, as an array of like's framework."""
    if framework(like) == "jax" and isinstance(array, np.ndarray):
        return sys.modules["jax"].numpy.asarray(array)
    return array


def check_writable(name: str, array: Any) -> None:
    """Exports of JAX's arrays do not say that nobody may write to them."""
    if framework(array) == "jax":
        raise InvalidArgument(f"{name} is an array of JAX, which are never written; it must be NumPy's or another's")


def int32_array(name: str, values: Any) -> Any:
    """Lengths and tables: device arrays as they are, else int32 on the host."""
    if is_on_cuda(values):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidArgument(f"{name} must be an array of integers: {error}") from error
    if array.dtype != np.int32:
        if array.size > 0 and array.dtype.kind not in "iu":
            raise InvalidArgument(f"{name} has elements of {array.dtype}; they must be integers")
        limits = np.iinfo(np.int32)
        if array.size > 0 and (array.min() < limits.min or array.max() > limits.max):
            raise InvalidArgument(f"{name} holds {array.min()}..{array.max()}; elements must be {limits.min}..{limits.max}")
    return np.ascontiguousarray(array, dtype=np.int32)


def records_gradient(*arrays: Any) -> bool:
    """Whether PyTorch would record a gradient of one of them. Dynamo traces this."""
    return any(getattr(array, "requires_grad", False) for array in arrays) and bool(sys.modules["torch"].is_grad_enabled())


def detach(arrays: dict[str, Any]) -> bool:
    """Detaches those that require a gradient, which PyTorch does not export; True, and nothing is done, where it records one.
    Refuses what would be lost."""
    torch = sys.modules.get("torch")
    if torch is not None and (torch.autograd.forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()):
        refuse_tangents(arrays)
        refuse_transforms(arrays)
    names = [name for name, array in arrays.items() if getattr(array, "requires_grad", False)]
    if not names:
        return False
    if sys.modules["torch"].is_grad_enabled():
        return True
    for name in names:
        arrays[name] = arrays[name].detach()
    return False


def refuse_tangents(arrays: Mapping[str, Any]) -> None:
    """Unsupported, if PyTorch would compute forward-mode derivatives of one of them, which would be lost."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level < 0:
        return
    for name, array in arrays.items():
        if framework(array) == "torch" and torch.autograd.forward_ad.unpack_dual(array).tangent is not None:
            raise Unsupported(f"{name} has a tangent; {NO_TANGENTS}")


def refuse_transforms(arrays: Mapping[str, Any]) -> None:
    """Unsupported, if one is a tensor of a transform of torch.func, which has no memory."""
    functions = sys.modules["torch"]._C
    for name, array in arrays.items():
        if framework(array) == "torch" and functions._functorch.is_functorch_wrapped_tensor(array):
            raise Unsupported(f"{name} is a tensor of torch.func's transforms (vmap, grad, jacrev); among Heed's functions "
                              "heed.torch.scaled_dot_product_attention takes them")


def refuse_gradient(name: str, array: Any) -> None:
    """Unsupported, if PyTorch would record a gradient of it."""
    if records_gradient(array):
        raise Unsupported(f"{name} requires a gradient, which Heed does not compute; call it under torch.no_grad(), or with "
                          f"{name}.detach()")


def without_gradient(name: str, array: Any) -> Any:
    """PyTorch exports no tensor that requires a gradient: where none is recorded it is taken without."""
    refuse_gradient(name, array)
    return array.detach() if getattr(array, "requires_grad", False) else array


_Launch: TypeAlias = "tuple[int, Callable[[int], Any] | None]"
_on_the_cpu: contextlib.nullcontext[_Launch] = contextlib.nullcontext((0, None))


def launch(like: Any, stream: Any) -> contextlib.AbstractContextManager[_Launch]:
    """The stream to launch on, and what allocates a workspace there; memory of PyTorch's belongs to that stream."""
    if is_on_cuda(like):
        return _launch_on_cuda(like, stream)
    if stream is not None:
        raise InvalidArgument("stream is given for arrays on the CPU; it must be None")
    return _on_the_cpu


@contextlib.contextmanager
def _launch_on_cuda(like: Any, stream: Any) -> Iterator[_Launch]:
    if framework(like) == "torch":
        torch = sys.modules["torch"]
        with torch.cuda.device(like.device):
            known = _thread.__dict__.setdefault("devices", set())
            if like.device.index not in known:
                torch.cuda.mem_get_info()  # any call of CUDA's runtime makes the device's context this thread's
                known.add(like.device.index)
            if stream is None:
                stream = torch.cuda.current_stream()
            elif isinstance(stream, int):
                stream = torch.cuda.ExternalStream(stream)
            with torch.cuda.stream(stream):
                yield stream.cuda_stream, lambda size: torch.empty(size, dtype=torch.uint8, device=like.device)
    else:
        yield int(getattr(stream, "ptr", stream) or 0), None


@contextlib.contextmanager
def device_of(arrays: Iterable[Any]) -> Iterator[None]:
    """The CUDA context of PyTorch's first tensor there, or of its current device when all of its tensors are on the host;
    without tensors of PyTorch's: the context that is current."""
    tensors = [array for array in arrays if framework(array) == "torch"]
    if not tensors:
        yield
        return
    there = next(filter(is_on_cuda, tensors), None)
    with launch(sys.modules["torch"].empty(0, device="cuda") if there is None else there, None):
        yield


def on_host(array: Any) -> Any:
    """The array, or of PyTorch's on a device a copy."""
    return array.cpu() if framework(array) == "torch" else array


def capability(like: Any) -> int | None:
    """The compute capability of the CUDA device that holds a tensor of PyTorch's."""
    if framework(like) != "torch" or not is_on_cuda(like):
        return None
    major, minor = sys.modules["torch"].cuda.get_device_capability(like.device)
    return int(10 * major + minor)
