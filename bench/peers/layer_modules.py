"""Published attention layers in PyTorch, as their texts write them: projections, softmax(q k^T) v, output projection. They
return y and the attention weights."""
import math

import torch
from torch import nn


class Scratch(nn.Module):
    """Separate projections; keys and values of fewer heads are repeated, or broadcast where there is one."""

    def __init__(self, shape):
        super().__init__()
        self._shape = shape
        dk, dv = shape.dim_k // shape.num_heads, shape.dim_v // shape.num_heads
        self._scale = 1 / math.sqrt(dk) if shape.scale is None else shape.scale
        self.linear_q = nn.Linear(shape.dim_in, shape.dim_k)
        self.linear_k = nn.Linear(shape.dim_in, dk * shape.num_kv_heads)
        self.linear_v = nn.Linear(shape.dim_in, dv * shape.num_kv_heads)
        self.linear_o = nn.Linear(shape.dim_v, shape.dim_out)

    def forward(self, x, hidden=None):
        """hidden: bool, true hides, or None."""
        batch, length, _ = x.shape
        heads, kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        q = self.linear_q(x).reshape(batch, length, heads, -1).transpose(1, 2)
        k = self.linear_k(x).reshape(batch, length, kv_heads, -1).transpose(1, 2)
        v = self.linear_v(x).reshape(batch, length, kv_heads, -1).transpose(1, 2)
        if 1 < kv_heads < heads:
            k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) * self._scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, -1)
        return self.linear_o(out), weights

    def heed_weights(self):
        named = {"q": self.linear_q, "k": self.linear_k, "v": self.linear_v, "o": self.linear_o}
        return {**{f"w{name}": linear.weight for name, linear in named.items()},
                **{f"b{name}": linear.bias for name, linear in named.items()}}


class Fused(nn.Module):
    """One projection to q, k and v; logits without a scale."""

    def __init__(self, shape):
        super().__init__()
        self._shape = shape
        self._kv = shape.dim_k // shape.num_heads * shape.num_kv_heads
        self.Wqkv = nn.Linear(shape.dim_in, shape.dim_k + 2 * self._kv)
        self.out_proj = nn.Linear(shape.dim_v, shape.dim_out)

    def forward(self, x, hidden=None):
        batch, length, _ = x.shape
        assert hidden is None
        q, k, v = self.Wqkv(x).split([self._shape.dim_k, self._kv, self._kv], dim=2)
        q = q.reshape(batch, length, self._shape.num_heads, -1).transpose(1, 2)
        k = k.reshape(batch, length, self._shape.num_kv_heads, -1).permute(0, 2, 3, 1)
        v = v.reshape(batch, length, self._shape.num_kv_heads, -1).transpose(1, 2)
        weights = torch.softmax(q.matmul(k), dim=-1)
        out = weights.matmul(v).transpose(1, 2).reshape(batch, length, -1)
        return self.out_proj(out), weights

    def heed_weights(self):
        return {"wqkv": self.Wqkv.weight, "bqkv": self.Wqkv.bias, "wo": self.out_proj.weight, "bo": self.out_proj.bias}


MODULES = {"scratch": Scratch, "fused": Fused}
