"""Attention weights, batch 1: heed.attention_probs on q and k [batch, len, heads, head_dim], the default layout, compared with PyTorch's
softmax(q k^T) of tensors with heads outside. Both through Python, both with a new array for each result."""
import numpy as np
import torch

from data import assert_near, stored, widened
from plan import PROBS_HEAD_DIM, PROBS_HEADS
from timing import Calls
from torch_peer import tensor

SCALE = PROBS_HEAD_DIM**-0.5


class Job:
    kernel = "attention_probs"

    def __init__(self, measurement, context):
        self._context, self._dtype = context, measurement.dtype
        self._len, self._causal = measurement.shape, measurement.variant == "causal"
        random = np.random.default_rng(7)
        size = (1, self._len, PROBS_HEADS, PROBS_HEAD_DIM)
        self._q, self._k = (stored(random.standard_normal(size, dtype=np.float32), self._dtype) for _ in range(2))

    def _check(self, probs):
        q, k = (widened(x).astype(np.float64).transpose(0, 2, 1, 3) for x in (self._q, self._k))
        logits = q @ k.transpose(0, 1, 3, 2) * SCALE
        if self._causal:
            logits = np.where(np.tri(self._len, dtype=bool), logits, -np.inf)
        exact = np.exp(logits - logits.max(-1, keepdims=True))
        assert_near(probs.float().numpy(), exact / exact.sum(-1, keepdims=True), self._dtype)

    def ours(self):
        heed, q, k = self._context.heed_package(), tensor(self._q), tensor(self._k)

        def call():
            return heed.attention_probs(q, k, causal=self._causal, max_threads=self._context.threads)

        self._check(call())
        return Calls([call], kernel=self.kernel)

    reference = ours

    def _softmax(self):
        q, k = (tensor(x).transpose(1, 2).contiguous() for x in (self._q, self._k))
        hidden = torch.ones(self._len, self._len, dtype=torch.bool).triu(1)

        def call():
            logits = q @ k.transpose(-1, -2) * SCALE
            return torch.softmax(logits.masked_fill(hidden, -torch.inf) if self._causal else logits, -1)

        self._check(call())
        return Calls([call])

    def peers(self):
        return {"torch_softmax": self._softmax}

    def work(self):
        """FLOPs, exponentials, bytes that are read or written."""
        pairs = PROBS_HEADS * self._len**2 * (0.5 if self._causal else 1)
        return 2 * pairs * PROBS_HEAD_DIM, pairs, PROBS_HEADS * self._len**2 * (4 if self._dtype == "f32" else 2)
