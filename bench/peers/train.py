"""A small GPT trained with Heed's attention and with PyTorch's, step by step in turns; run it with PYTHONPATH at the package.

    train.py [--steps 50] [--batch 8] [--context 256] [--width 256] [--layers 4] [--kv-heads 4] [--dtypes f32,bf16]
             [--threads 2] [--json FILE]

Both start from the same weights and see the same bytes of this project's licence, by AdamW; losses must be equal within 1 %
(f32) or 3 % (bf16) at each step. Times are the medians of the steps after the first five; `attention` is the
attention alone, forward and backward, at the shapes of a layer."""
import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

TEXT = pathlib.Path(__file__).parents[2] / "LICENSE"
BOUND = {"f32": 0.01, "bf16": 0.03}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Block(nn.Module):
    def __init__(self, width, kv_heads, attention):
        super().__init__()
        self.heads, self.kv_heads, self.attention = max(width // 64, 1), kv_heads, attention
        self.dim = width // self.heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (self.heads + 2 * kv_heads) * self.dim)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, self.dim)).transpose(1, 2) for part in self.qkv(self.norm(x)).split(
            [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], -1))
        heads = self.attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, attention, context, width, layers, kv_heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, kv_heads, attention) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Run:
    """A model with its optimizer and its batches."""

    def __init__(self, attention, batch, context, width, layers, kv_heads, dtype=torch.float32):
        torch.manual_seed(0)
        self.model = Gpt(attention, context, width, layers, kv_heads).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.text = torch.tensor(list(TEXT.read_bytes())) % 128
        self.generator, self.batch, self.context = torch.Generator().manual_seed(1), batch, context

    def step(self):
        starts = torch.randint(len(self.text) - self.context - 1, (self.batch,), generator=self.generator)
        window = torch.stack([self.text[start:start + self.context + 1] for start in starts])
        loss = F.cross_entropy(self.model(window[:, :-1]).flatten(0, 1).float(), window[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def losses(attention, steps, batch=4, context=64, width=128, layers=2, kv_heads=1, dtype=torch.float32):
    run = Run(attention, batch, context, width, layers, kv_heads, dtype)
    return [run.step() for _ in range(steps)]


def attention_ms(attention, options, dtype, calls=9):
    heads, generator = options.width // 64, torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(options.batch, count, options.context, 64, generator=generator).to(dtype).requires_grad_()
               for count in (heads, options.kv_heads, options.kv_heads))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        out = attention(q, k, v, is_causal=True, enable_gqa=heads != options.kv_heads)
        out.backward(out.detach())
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def measure(name, options):
    import heed.torch

    functions = {"heed": heed.torch.scaled_dot_product_attention, "torch": F.scaled_dot_product_attention}
    runs = {key: Run(function, options.batch, options.context, options.width, options.layers, options.kv_heads, DTYPES[name])
            for key, function in functions.items()}
    found, times, apart = {key: [] for key in runs}, {key: [] for key in runs}, 0.0
    for _ in range(options.steps):
        for key, run in runs.items():
            start = time.perf_counter()
            found[key].append(run.step())
            times[key].append(1e3 * (time.perf_counter() - start))
        apart = max(apart, abs(found["heed"][-1] / found["torch"][-1] - 1))
    return {"dtype": name, "first_loss": found["heed"][0], "last_loss": {key: values[-1] for key, values in found.items()},
            "largest_difference": apart, "step_ms": {key: statistics.median(values[5:]) for key, values in times.items()},
            "attention_ms": {key: attention_ms(function, options, DTYPES[name]) for key, function in functions.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 50), ("batch", 8), ("context", 256), ("width", 256), ("layers", 4), ("kv-heads", 4), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(f"{'':5} {'losses':>17} {'apart':>7} {'step ms':>8} {'PyTorch':>8} {'ratio':>6} {'attention':>10} {'PyTorch':>8} {'ratio':>6}")
    for name in options.dtypes.split(","):
        row = measure(name, options)
        rows.append(row)
        (a, b), (c, d) = ((row[key]["heed"], row[key]["torch"]) for key in ("step_ms", "attention_ms"))
        print(f"{name:5} {row['first_loss']:8.4f} {row['last_loss']['heed']:8.4f} {row['largest_difference']:7.1e} {a:8.1f} {b:8.1f} "
              f"{b / a:6.2f} {c:10.2f} {d:8.2f} {d / c:6.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            shape = {name: value for name, value in vars(options).items() if name not in ("json", "dtypes")}
            json.dump({**shape, "torch": torch.__version__, "rows": rows}, file, indent=1)
            file.write("\n")
    for row in rows:
        if row["largest_difference"] > BOUND[row["dtype"]]:
            raise SystemExit(f"{row['dtype']}: losses are {row['largest_difference']:.1%} apart at a step")


if __name__ == "__main__":
    main()
