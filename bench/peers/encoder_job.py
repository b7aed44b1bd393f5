"""The whole encoder of the demo (bench/demo/minilm), from token ids to sentence vectors, compared with the same model in PyTorch: the same
weights, texts and batches, which are padded to their longest text. Ours is the demo's program, started for each round; its time
is of encoding alone, plans for new lengths included, and each text is encoded once."""
import json
import math
import pathlib
import subprocess
import tempfile

import numpy as np
import torch
from torch.nn import functional as F

from data import Wrong
from timing import Calls

BATCH, LAYERS, HEADS, EPSILON = 32, 6, 12, 1e-12
LARGEST_DIFFERENCE = 1e-4  # of unit vectors


def stored_tensors(path):
    """Those of a safetensors file, f32."""
    data = np.memmap(path, mode="r")
    length = int(data[:8].view(np.uint64)[0])
    header, body = json.loads(bytes(data[8:8 + length])), data[8 + length:]
    return {name: torch.from_numpy(body[slice(*entry["data_offsets"])].view(np.float32).reshape(entry["shape"]).copy())
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32"}


def batches(texts):
    """(ids [batch, len], valid [batch, len], at which text each) of batches as the demo's: sorted by length."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    for first in range(0, len(order), BATCH):
        at = order[first:first + BATCH]
        length = len(texts[at[-1]])
        ids = torch.tensor([texts[i] + [0] * (length - len(texts[i])) for i in at])
        yield ids, torch.arange(length)[None] < torch.tensor([[len(texts[i])] for i in at]), at


class Bert:
    def __init__(self, tensors):
        self._tensors = tensors

    def _linear(self, name, x):
        return F.linear(x, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def _norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"], EPSILON)

    def _attention(self, name, x, valid):
        q, k, v = (self._linear(f"{name}.self.{part}", x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for part in ("query", "key", "value"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None])
        return self._linear(f"{name}.output.dense", out.transpose(1, 2).flatten(2))

    def embed(self, ids, valid):
        """[batch, hidden] unit vectors."""
        words, positions, types = (self._tensors[f"embeddings.{name}_embeddings.weight"]
                                   for name in ("word", "position", "token_type"))
        x = self._norm("embeddings.LayerNorm", F.embedding(ids, words) + positions[:ids.shape[1]] + types[0])
        for n in range(LAYERS):
            layer = f"encoder.layer.{n}"
            x = self._norm(f"{layer}.attention.output.LayerNorm", x + self._attention(f"{layer}.attention", x, valid))
            wide = F.gelu(self._linear(f"{layer}.intermediate.dense", x))
            x = self._norm(f"{layer}.output.LayerNorm", x + self._linear(f"{layer}.output.dense", wide))
        mean = (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        return F.normalize(mean, dim=1)


class Demo:
    kernel = "minilm"

    def __init__(self, program, folder, threads, texts):
        self._command = [str(program), str(folder), "--skip-naive", "--threads", str(threads)]
        self._texts = texts

    def run(self, *more):
        """ms of encoding the texts."""
        out = subprocess.run([*self._command, *more], capture_output=True, text=True, check=True).stdout
        lines = [line.split() for line in out.splitlines()]
        return float(next(line[4] for line in lines if len(line) > 5 and line[0] == self._texts and line[5] == "|"))

    def vectors(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run("--out", folder)
            return np.fromfile(pathlib.Path(folder) / f"{self._texts}.f32", np.float32).reshape(-1, 384)

    def round(self, _):
        return self.run()


class Job:
    def __init__(self, measurement, context):
        self._texts = measurement.variant
        self._demo = Demo(context.minilm, context.minilm_folder, context.threads, self._texts)
        assets = json.loads((context.minilm_folder / "assets.json").read_text(encoding="utf-8"))
        self._weights, self._ids = assets["weights"], [piece["ids"] for piece in assets[self._texts]]

    def ours(self):
        self._demo.run()
        return self._demo

    def _model(self):
        model, found = Bert(stored_tensors(self._weights)), [None] * len(self._ids)

        def call():
            for ids, valid, at in batches(self._ids):
                for i, vector in zip(at, model.embed(ids, valid)):
                    found[i] = vector

        call()
        if not np.abs(self._demo.vectors() - torch.stack(found).numpy()).max() <= LARGEST_DIFFERENCE:
            raise Wrong("the vectors are not those of the demo")
        return Calls([call])

    def peers(self):
        return {"torch_model": self._model}

    def work(self):
        """FLOPs, exponentials, bytes that are read or written: of real tokens, with the weights once a batch."""
        hidden, wide = 384, 1536
        per_token = 4 * hidden * hidden + 2 * hidden * wide
        tokens, pairs = sum(map(len, self._ids)), sum(len(ids)**2 for ids in self._ids)
        flops = LAYERS * 2 * (tokens * per_token + 2 * hidden * pairs)
        return flops, LAYERS * HEADS * pairs, LAYERS * 4 * per_token * math.ceil(len(self._ids) / BATCH)
