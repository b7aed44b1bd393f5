"""Where a layer's weights come from: arrays, or the parameters of PyTorch's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import _arrays
from ._errors import InvalidArgument, Unsupported

Weights = Callable[[], dict[str, Any]]


def is_module(weights: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(weights, torch.nn.Module)


def of_multihead_attention(module: Any, config: dict[str, Any]) -> Weights:
    """The weights of an nn.MultiheadAttention; what it says of the layer joins `config`, which may say it otherwise."""
    if not isinstance(module, sys.modules["torch"].nn.MultiheadAttention):
        raise InvalidArgument(f"weights is a {type(module).__name__}; it must be a mapping of arrays or an nn.MultiheadAttention. Of other "
                              "modules: heed.Layer.from_module(module, {'wq': 'q_proj.weight', ...}, ...)")
    for name, given in (("bias_k", module.bias_k), ("bias_v", module.bias_v), ("add_zero_attn", module.add_zero_attn or None)):
        if given is not None:
            raise Unsupported(f"the nn.MultiheadAttention has {name}; heed.Layer has no keys except those of its tokens")
    if module.kdim != module.vdim:
        raise Unsupported(f"the nn.MultiheadAttention has kdim {module.kdim} and vdim {module.vdim}; they must be equal, since "
                          "heed.Layer makes keys and values of one context")
    if module.kdim != module.embed_dim:
        config.setdefault("cross", True)
        config.setdefault("dim_context", module.kdim)
    fused = module.in_proj_weight is not None and not config.get("cross")
    for name, value in (("dim_in", module.embed_dim), ("num_heads", module.num_heads), ("num_kv_heads", module.num_heads),
                        ("dropout_p", float(module.dropout)), ("mask_true_hides", True),
                        ("weight_layout", "fused" if fused else "separate")):
        config.setdefault(name, value)

    def weights() -> dict[str, Any]:
        found = {"wo": module.out_proj.weight, "bo": module.out_proj.bias}
        if fused:
            found.update(wqkv=module.in_proj_weight, bqkv=module.in_proj_bias)
        else:
            parts = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
            found.update(zip(("wq", "wk", "wv"), parts if module.in_proj_weight is None else module.in_proj_weight.chunk(3)))
            if module.in_proj_bias is not None:
                found.update(zip(("bq", "bk", "bv"), module.in_proj_bias.chunk(3)))
        return {name: weight for name, weight in found.items() if weight is not None}

    return weights


def of_module(module: Any, names: Mapping[str, str]) -> Weights:
    """names: of parameters or buffers, as state_dict has them, by heed_layer_weights' names."""
    def weights() -> dict[str, Any]:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name in names.values():
            if name not in tensors:
                raise InvalidArgument(f"the module has no parameter '{name}'; it has {', '.join(sorted(tensors))}")
        return {name: tensors[path] for name, path in names.items()}

    return weights


def version_of(weights: Mapping[str, Any]) -> tuple[Any, ...]:
    """What changes when a tensor of PyTorch's is written, or another takes its place."""
    return tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version)
                 for weight in weights.values() if _arrays.framework(weight) == "torch")
