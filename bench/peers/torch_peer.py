"""PyTorch: scaled_dot_product_attention, and linear."""
import numpy as np
import torch

from data import stored
from timing import Calls

torch.set_grad_enabled(False)


def set_threads(threads):
    torch.set_num_threads(threads)


def tensor(x):
    """Shares the array's memory."""
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == np.uint16 else torch.from_numpy(x)


def sdpa(data):
    q, k, v = tensor(data.q), [tensor(x) for x in data.k], [tensor(x) for x in data.v]
    mask = data.mask
    if mask is not None:
        mask = torch.from_numpy(mask) if mask.dtype == bool else tensor(stored(mask, data.dtype))
    grouped = data.group_size > 1
    softcap, dropout = data.case["softcap"], data.case["dropout_p"]
    factor = None if data.query_factor is None else tensor(stored(data.query_factor, data.dtype))
    hidden = torch.ones(data.case["q_len"], data.case["kv_len"], dtype=torch.bool).triu(1) if softcap and data.causal else None

    def call_with_softcap(query, copy):
        """sdpa has none: what models of transformers run."""
        groups, scale = data.group_size, data.case["head_dim"] ** -0.5
        logits = query @ k[copy].repeat_interleave(groups, 1).transpose(2, 3) * scale
        logits = softcap * torch.tanh(logits / softcap)
        if hidden is not None:
            logits = logits.masked_fill(hidden, -torch.inf)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
        weights = torch.softmax(logits, -1)
        return (torch.dropout(weights, dropout, True) if dropout else weights) @ v[copy].repeat_interleave(groups, 1)

    def call(copy):
        query = q if factor is None else q * factor
        if softcap:
            return call_with_softcap(query, copy)
        return torch.nn.functional.scaled_dot_product_attention(query, k[copy], v[copy], attn_mask=mask, is_causal=data.causal,
                                                                enable_gqa=grouped, dropout_p=dropout)

    data.check(call(0).float().numpy())
    return Calls([lambda copy=copy: call(copy) for copy in range(len(k))])


def matmuls(data):
    """One query of many heads that share keys: two products and a softmax, as a program would write them."""
    case = data.case
    q = tensor(data.q).view(case["batch"], case["num_kv_heads"], data.group_size, case["head_dim"])
    k, v = [tensor(x) for x in data.k], [tensor(x) for x in data.v]
    scale = case["head_dim"] ** -0.5

    def call(copy):
        weights = torch.softmax((q @ k[copy].transpose(2, 3)).mul_(scale), -1)
        return (weights @ v[copy]).view(data.out_shape)

    data.check(call(0).float().numpy())
    return Calls([lambda copy=copy: call(copy) for copy in range(len(k))])


def linear(data):
    x, weight, bias = (tensor(part) for part in (data.x, data.weight, data.bias))

    def call():
        return torch.nn.functional.linear(x, weight, bias)

    data.check(call().float().numpy())
    return Calls([call])
