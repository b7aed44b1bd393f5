"""Dense layers y = x weight^T + bias. Ours: heed_linear through the C API, its weights packed once before calls are timed.
PyTorch keeps the weights as the user has them, and oneDNN or MKL pack in each call what they want packed; ONNX Runtime and
OpenVINO have them as constants of the model, which they pack once."""
import numpy as np

import onnx_peer
import openvino_peer
import torch_peer
from data import assert_near, stored, widened
from ours import HeedLinear


class Data:
    def __init__(self, shape, dtype):
        rows, dim_in, dim_out = shape
        random = np.random.default_rng(7)
        self.dtype = dtype
        self.x, self.weight, self.bias = (stored(random.random(size, dtype=np.float32) - 0.5, dtype)
                                          for size in ((rows, dim_in), (dim_out, dim_in), (dim_out,)))
        self._at = np.unique(random.integers(0, rows, 16))

    def check(self, y):
        """Raises Wrong for rows that are not x weight^T + bias."""
        x, weight, bias = (widened(part).astype(np.float64) for part in (self.x[self._at], self.weight, self.bias))
        assert_near(y[self._at], x @ weight.T + bias, self.dtype)


class Job:
    def __init__(self, measurement, context):
        self._measurement, self._context = measurement, context

    def ours(self):
        m, context = self._measurement, self._context
        data = Data(m.shape, m.dtype)
        heed = context.heed_package()
        weights = heed.LinearWeights(torch_peer.tensor(data.weight), torch_peer.tensor(data.bias))
        data.check(heed.linear(torch_peer.tensor(data.x), weights).float().numpy())
        return HeedLinear(context.heed_linear, m.shape, m.dtype, context.threads)

    reference = ours

    def peers(self):
        data, threads = Data(self._measurement.shape, self._measurement.dtype), self._context.threads
        return {"torch_linear": lambda: torch_peer.linear(data),
                "ort_linear": lambda: onnx_peer.linear(data, threads),
                "openvino_linear": lambda: openvino_peer.linear(data, threads)}

    def work(self):
        """FLOPs, exponentials, bytes that are read or written."""
        rows, dim_in, dim_out = self._measurement.shape
        numbers = rows * dim_in + dim_in * dim_out + rows * dim_out
        return 2 * rows * dim_in * dim_out, 0, numbers * (4 if self._measurement.dtype == "f32" else 2)
