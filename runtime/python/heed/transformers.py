"""Heed as the attention of Hugging Face models.

    heed.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed")
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _heed
from ._errors import Error, Unsupported
from ._model_masks import WHOLE, Mask, Part, make_mask
from ._arrays import records_gradient
from ._autograd import attention as _recorded
from .torch import attend, autocast, runs_directly

NAME = "heed"


def register() -> None:
    """Makes attn_implementation="heed" known to transformers (4.53 or newer).

    Masks reach Heed as what they are: causal, a sliding window, padding on either side; others, and those of older
    versions of transformers, as dense booleans. A model whose code never calls the interface (Falcon, Bloom, MPT) gets its
    default attention instead; a UserWarning says so.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attention_forward)
    tells_lengths = "q_length" in inspect.signature(sdpa_mask).parameters
    AttentionMaskInterface.register(NAME, make_mask if tells_lengths else sdpa_mask)
    check, change = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation
    if not hasattr(check, "heed_warns"):
        PreTrainedModel.get_correct_attn_implementation = _warning(check)
        PreTrainedModel.set_attn_implementation = _warning_after(change)


def _warning(check: Callable[..., str]) -> Callable[..., str]:
    """The method that each model asks for its implementation: its own default where "heed" would be ignored."""
    @functools.wraps(check)
    def checked(model: Any, requested: str | None, *arguments: Any, **options: Any) -> str:
        if requested != NAME or _calls_interface(type(model)):
            return check(model, requested, *arguments, **options)
        default = check(model, None, *arguments, **options)
        _warn(model, default)
        return default

    checked.heed_warns = True  # type: ignore[attr-defined]
    return checked


def _warning_after(change: Callable[..., None]) -> Callable[..., None]:
    """The method that changes a model's implementation, with a word about models that it leaves as they are."""
    @functools.wraps(change)
    def changed(model: Any, attn_implementation: str | dict[str, str], *arguments: Any, **options: Any) -> None:
        change(model, attn_implementation, *arguments, **options)
        requested = attn_implementation.get("") if isinstance(attn_implementation, dict) else attn_implementation
        if requested == NAME and not _calls_interface(type(model)):
            _warn(model, model.config._attn_implementation)

    return changed


def _warn(model: Any, implementation: str) -> None:
    warnings.warn(f"{type(model).__name__} computes attention in code of its own, which never calls transformers' "
                  f"AttentionInterface: attn_implementation is '{implementation}', Heed is not used", stacklevel=3)


def _calls_interface(model_class: type) -> bool:
    """As the sources of the class or of one of its bases say; True for versions that cannot tell."""
    from transformers import PreTrainedModel

    tells = [base._can_set_attn_implementation() for base in model_class.__mro__
             if issubclass(base, PreTrainedModel) and base is not PreTrainedModel and hasattr(base, "_can_set_attn_implementation")]
    return any(tells) or not tells


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                      dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
                      softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
                      **options: Any) -> tuple[Tensor, None]:
    """The function of transformers' AttentionInterface: query, key, value [batch, heads, len, head_dim] to
    [batch, q_len, num_heads, head_dim_v]. Without a mask a module that is causal sees keys from the first one on.
    """
    if options.get("output_attentions"):
        raise Unsupported("output_attentions is True; attention weights need attn_implementation='eager'")
    if options.get("cache") is not None:
        raise Unsupported("cache is given, for continuous batching; it must be None")
    causal = attention_mask is None and query.size(2) > 1 and (
        getattr(module, "is_causal", True) if is_causal is None else is_causal)
    direct = s_aux is None and position_bias is None and dropout == 0.0 and not is_compiling()
    if direct and attention_mask is None and not softcap:
        plain: Tensor | None = _heed.sdpa(query, key, value, None, causal, scaling, True)
        if plain is not None:
            return plain.transpose(1, 2), None
    fields: dict[str, Any] = {}
    if scaling is not None:
        fields["scale"] = scaling
    if softcap:
        fields["softcap"] = softcap
    if direct and type(attention_mask) is Mask:
        run = attention_mask.run()
        masked: Tensor | None = None if run is None else _heed.attend_run(query, key, value, run, fields)
        if masked is not None:
            return masked.transpose(1, 2), None
    query, key, value = autocast(query, key, value)
    sink = None if s_aux is None else s_aux.float()
    if dropout == 0.0 and query.is_cpu and runs_directly(query, key, value):
        try:
            return _attend(query, key, value, attention_mask, position_bias, sink, causal, {"heads_first": True, **fields}), None
        except Error:  # the operator copies what no kernel takes in place, or refuses
            pass
    mask, bias = _mask_and_bias(attention_mask, position_bias)
    return attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, bias, sink, causal, scaling,
                  softcap or 0.0, dropout), None


def _mask_and_bias(mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(mask, Mask):
        mask = mask.dense()
    if mask is None or mask.dtype == torch.bool:
        return mask, position_bias
    return None, mask if position_bias is None else mask + position_bias


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None,
            causal: bool, fields: dict[str, Any]) -> Tensor:
    batch, heads, q_len, _ = query.shape
    arrays = {"q": query, "k": key, "v": value}
    records = torch.is_grad_enabled() and records_gradient(query, key, value, mask, bias, sink)
    if not records:
        arrays["out"] = out = query.new_empty((batch, q_len, heads, value.size(-1)))
    if sink is not None:
        arrays["sink"] = sink if records else sink.detach()
    if type(mask) is Mask and mask.shape[0] == batch and mask.shape[-1] == key.size(2):
        parts = mask.parts()
    else:
        parts = WHOLE
        mask, bias = _mask_and_bias(mask, bias)
        if mask is not None:
            arrays["mask"] = mask
        if causal:
            fields["causal"] = True
    if bias is not None:
        arrays["bias"] = bias
    if records:
        outs = [_record(part, arrays, fields) for part in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs)
    for part in parts:
        _heed.attention({**part.cut(arrays), **part.arrays}, {**fields, **part.fields})
    return out


def _record(part: Part, arrays: dict[str, Tensor], fields: dict[str, Any]) -> Tensor:
    """The part's out, with gradients."""
    cut = part.cut(arrays)
    cut.update((name, cut[name].transpose(1, 2)) for name in ("q", "k", "v"))
    own = {name: value for name, value in {**fields, **part.fields}.items() if name != "heads_first"}
    return _recorded({**cut, **part.arrays}, own)[0]
