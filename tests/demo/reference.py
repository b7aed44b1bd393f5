"""all-MiniLM-L6-v2 in NumPy and fp64, written from the BERT formulas: the oracle for heed_minilm's embeddings.

It shares nothing with the program: own reader for the weights, and every text runs alone, without padding, so that
there are no lengths to get wrong: what a batch of packed tokens means is exactly this."""

import json
import math
from pathlib import Path

import numpy as np

NUM_LAYERS = 6
NUM_HEADS = 12
LAYER_NORM_EPSILON = 1e-12


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every f32 tensor of the file, widened to fp64."""
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_bytes])
    data = memoryview(raw)[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"]).astype(np.float64)
    return tensors


ERF_STEPS_PER_UNIT = 512
ERF_LIMIT = 6  # erf(6) rounds to 1
ERF_TABLE = np.array([math.erf(i / ERF_STEPS_PER_UNIT) for i in range(ERF_LIMIT * ERF_STEPS_PER_UNIT + 1)])


def erf(x: np.ndarray) -> np.ndarray:
    """Taylor series of fourth order around the nearest table point: the next term is below 1e-15."""
    magnitude = np.minimum(np.abs(x), ERF_LIMIT)
    index = np.rint(magnitude * ERF_STEPS_PER_UNIT).astype(np.int64)
    point = index / ERF_STEPS_PER_UNIT
    step = magnitude - point
    slope = 2 / math.sqrt(math.pi) * np.exp(-point * point)
    series = 1 + step * (-point + step * ((2 * point**2 - 1) / 3 + step * (3 * point - 2 * point**3) / 6))
    return np.copysign(ERF_TABLE[index] + slope * step * series, x)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


class Model:
    def __init__(self, path: Path):
        self.weights = read_safetensors(path)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        unit = centred / np.sqrt(variance + LAYER_NORM_EPSILON)
        return unit * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def attention(self, name: str, x: np.ndarray) -> np.ndarray:
        def heads(part: str) -> np.ndarray:  # [num_heads, tokens, head_dim]
            return self.linear(f"{name}.self.{part}", x).reshape(len(x), NUM_HEADS, -1).transpose(1, 0, 2)

        q, k, v = heads("query"), heads("key"), heads("value")
        logits = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        return (probs @ v).transpose(1, 0, 2).reshape(x.shape)

    def layer(self, name: str, x: np.ndarray) -> np.ndarray:
        attended = self.linear(name + ".attention.output.dense", self.attention(name + ".attention", x))
        x = self.layer_norm(name + ".attention.output.LayerNorm", x + attended)
        wide = gelu(self.linear(name + ".intermediate.dense", x))
        return self.layer_norm(name + ".output.LayerNorm", x + self.linear(name + ".output.dense", wide))

    def embed(self, ids: list[int]) -> np.ndarray:
        """The unit vector of one text: the mean over its tokens' last hidden states, scaled to length 1."""
        tables = [self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
        x = tables[0][ids] + tables[1][: len(ids)] + tables[2][0]
        x = self.layer_norm("embeddings.LayerNorm", x)
        for i in range(NUM_LAYERS):
            x = self.layer(f"encoder.layer.{i}", x)
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)
