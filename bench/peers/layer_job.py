"""Attention layers: heed.Layer compared with the published PyTorch module, both through Python on PyTorch's tensors, with the mask that
the module gets. With weights: both also give the attention weights, in a new array for each call."""
import math

import torch

from data import assert_near
from layer_modules import MODULES
from timing import Calls

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def mask_of(shape):
    """bool, true hides, or None."""
    if shape.mask == "causal":
        return torch.ones(shape.len, shape.len, dtype=torch.bool).triu(1)
    if shape.mask == "keys":  # the text's, [batch, 1, 1, len] for all heads and queries
        return torch.tensor([[1, 0], [0, 0], [0, 1]], dtype=torch.bool)[:, None, None].expand(
            shape.batch, shape.num_heads, shape.len, shape.len).contiguous()
    return None


class Job:
    kernel = "layer"

    def __init__(self, measurement, context):
        self._context, self._dtype, self._shape = context, measurement.dtype, measurement.shape
        self._with_weights = measurement.variant == "weights"
        torch.manual_seed(7)
        shape, kind = self._shape, TYPES[self._dtype]
        self._module = MODULES[shape.form](shape).to(kind).eval()
        self._x = torch.randn(shape.batch, shape.len, shape.dim_in).to(kind)
        self._mask = mask_of(shape)

    def _check(self, y, weights):
        exact_y, exact_weights = self._exact_module()(self._x.double(), self._mask)
        assert_near(y.double().numpy(), exact_y.numpy(), self._dtype)
        if weights is not None:
            assert_near(weights.double().numpy(), exact_weights.numpy(), self._dtype)

    def _exact_module(self):
        exact = MODULES[self._shape.form](self._shape).double()
        exact.load_state_dict(self._module.state_dict())
        return exact

    def _layer(self):
        shape = self._shape
        fields = {"dim_in": shape.dim_in, "dim_out": shape.dim_out, "num_heads": shape.num_heads,
                  "num_kv_heads": shape.num_kv_heads, "head_dim": shape.dim_k // shape.num_heads,
                  "head_dim_v": shape.dim_v // shape.num_heads, "max_batch": shape.batch, "max_q_len": shape.len,
                  "max_kv_len": shape.len, "max_threads": self._context.threads, "mask_true_hides": True,
                  "scale": math.nan if shape.scale is None else shape.scale}
        if shape.form == "fused":
            fields["weight_layout"] = "fused"
        weights = {name: weight.detach() for name, weight in self._module.heed_weights().items()}
        return self._context.heed_package().Layer(weights, **fields)

    def ours(self):
        layer, shape, x = self._layer(), self._shape, self._x
        given = {} if self._mask is None else {"mask": self._mask}

        def call():
            if not self._with_weights:
                return layer(x, **given), None
            weights = torch.empty(shape.batch, shape.num_heads, shape.len, shape.len, dtype=x.dtype)
            return layer(x, probs=weights, **given), weights

        self._check(*call())
        return Calls([call], kernel=self.kernel)

    reference = ours

    def _of_module(self):
        def call():
            y, weights = self._module(self._x, self._mask)
            return y, weights if self._with_weights else None

        self._check(*call())
        return Calls([call])

    def peers(self):
        return {"torch_module": self._of_module}

    def work(self):
        """FLOPs, exponentials, bytes that are read or written."""
        s = self._shape
        tokens, pairs, kv_share = s.batch * s.len, s.batch * s.num_heads * s.len**2, s.num_kv_heads / s.num_heads
        numbers = s.dim_in * (s.dim_k + (s.dim_k + s.dim_v) * kv_share) + s.dim_v * s.dim_out
        flops = 2 * tokens * numbers + 2 * pairs * (s.dim_k + s.dim_v) / s.num_heads
        written = pairs if self._with_weights else 0
        return flops, pairs, (numbers + tokens * (s.dim_in + s.dim_out) + written) * (4 if self._dtype == "f32" else 2)
