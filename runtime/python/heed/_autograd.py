"""What PyTorch records of Heed's calls: the forward keeps lse, the backward calls the C library. Deterministic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _arrays, _heed
from ._errors import Unsupported
from ._gradients import DIFFERENTIABLE, differentiate, differentiate_layer


class AttentionCall(NamedTuple):
    """Names of the tensors that PyTorch tracks, and all else of the call."""

    names: list[str]
    others: dict[str, Any]
    fields: dict[str, Any]
    out: Tensor
    stream: Any

    def arrays(self, tensors: Any) -> dict[str, Any]:
        return {**self.others, **{name: tensor.detach() for name, tensor in zip(self.names, tensors)}}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: AttentionCall, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        arrays, out = call.arrays(tensors), call.out
        lse = out.new_empty(_arrays.lse_shape(tuple(out.shape)), dtype=torch.float32)
        with _arrays.launch(out, call.stream) as (handle, allocate):
            _heed.attention({**arrays, "out": out, "lse": lse}, call.fields, handle, allocate)
        ctx.call = call._replace(out=None)
        ctx.save_for_backward(*tensors, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return (None,) * len(ctx.needs_input_grad)
        *tensors, out, lse = ctx.saved_tensors
        names = [name for name, needed in zip(ctx.call.names, ctx.needs_input_grad[1:]) if needed]
        for name in names:
            if name not in DIFFERENTIABLE:
                raise Unsupported(f"{name} requires a gradient, which Heed does not compute; give the call {name}.detach()")
        arrays = {**ctx.call.arrays(tensors), "out": out.detach(), "lse": lse.detach()}
        found = differentiate(arrays, ctx.call.fields, dout.detach(), names)
        return (None, *(found.get(name) for name in ctx.call.names))


def attention(arrays: dict[str, Any], fields: dict[str, Any], out: Tensor | None = None,
              stream: Any = None) -> tuple[Tensor, Tensor]:
    """out and lse of a call of heed._heed.attention without both, recorded. `out`: a new tensor to take, by default packed."""
    q, v = arrays["q"], arrays["v"]
    if out is None:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    names = [name for name, array in arrays.items() if isinstance(array, Tensor)]
    others = {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in arrays.items() if name not in names}
    result: tuple[Tensor, Tensor] = _Attention.apply(AttentionCall(names, others, fields, out, stream),
                                                     *(arrays[name] for name in names))
    return result


class LayerCall(NamedTuple):
    """A call of a layer: its weights in C's order, the names of the tensors that PyTorch tracks, and all else."""

    layer: _heed.Layer
    names: list[str]  # of the call's arrays, then of the weights
    num_weights: int
    others: dict[str, Any]
    fields: dict[str, Any]
    cache: Any
    stream: Any

    def arrays(self, tensors: Any) -> dict[str, Any]:
        count = len(self.names) - self.num_weights
        return {**self.others, **{name: tensor.detach() for name, tensor in zip(self.names[:count], tensors)}}


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: LayerCall, *tensors: Tensor) -> Tensor:
        x = tensors[0]
        out = x.new_empty((*x.shape[:-1], call.layer.dim_out))
        with _arrays.launch(x, call.stream) as (handle, allocate):
            call.layer.forward({**call.arrays(tensors), "out": out}, call.fields, call.cache, handle, allocate)
        ctx.call = call._replace(others={name: array for name, array in call.others.items() if name not in ("probs", "workspace")})
        ctx.save_for_backward(*tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        if call.cache is not None:
            raise Unsupported("cache is given; gradients are of calls without one: run it under torch.no_grad(), or with no past")
        count = len(call.names) - call.num_weights
        needed = dict(zip(call.names, ctx.needs_input_grad[1:]))
        weights = {name: tensor for name, tensor in zip(call.names[count:], tensors[count:]) if needed[name]}
        arrays = call.arrays(tensors)
        found = differentiate_layer(call.layer, arrays, call.fields, dy.detach(), [n for n in call.names[:count] if needed[n]], weights)
        return (None, *(found.get(name) for name in call.names))


def layer(call: LayerCall, tensors: list[Tensor]) -> Tensor:
    result: Tensor = _Layer.apply(call, *tensors)
    return result

