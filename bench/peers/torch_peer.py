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

    def call(copy):
        return torch.nn.functional.scaled_dot_product_attention(q, k[copy], v[copy], attn_mask=mask, is_causal=data.causal,
                                                                enable_gqa=grouped)

    data.check(call(0).float().numpy())
    return Calls([lambda copy=copy: call(copy) for copy in range(len(k))])


def linear(shape, dtype):
    rows, dim_in, dim_out = shape
    random = np.random.default_rng(7)
    x, weight, bias = (tensor(stored(random.random(size, dtype=np.float32) - 0.5, dtype))
                       for size in ((rows, dim_in), (dim_out, dim_in), (dim_out,)))
    return Calls([lambda: torch.nn.functional.linear(x, weight, bias)])
