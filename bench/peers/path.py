"""What a call costs before its kernel: Heed's way from PyTorch compared with PyTorch's own; run it with PYTHONPATH at the package.

    path.py [--rounds 7] [--calls 300] [--threads 2] [--json FILE]

A step of decoding over a cache so small (2 heads of 64, up to 32 keys) that next to nothing is computed. Functions of
PyTorch: one length again and again, and a cache that grows by a token with each call, as torch.cat makes it: at lengths that
an earlier layer had, and as the first layer, each call a problem that Heed has no plan for. Functions of transformers, one
layer's call at lengths that an earlier layer had, with the mask that transformers makes for each: a batch of 4 with padding on
the left, and a window of 16 tokens. The median of the calls of a round; the fastest of all rounds counts."""
import argparse
import itertools
import json
import statistics
import time

import torch
import torch.nn.functional as F
from transformers import masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import heed.torch
import heed.transformers
from heed._model_masks import make_mask
from machine import machine

HEADS, HEAD_DIM, LONGEST, MODELS = 2, 64, 32, 128  # more models and lengths than Heed keeps plans for
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
MODULE = torch.nn.Module()


def tensors(batch, kv_len, dtype):
    return torch.randn(batch, HEADS, kv_len, HEAD_DIM, dtype=dtype)


def steps(dtype, lengths, models=1):
    """The call over a cache of each length, all in the same memory, which stays in the processor's caches; each model has its scale."""
    q, memory = tensors(1, 1, dtype), [tensors(1, max(lengths), dtype).flatten() for _ in range(2)]
    caches = [[part[:HEADS * kv_len * HEAD_DIM].view(1, HEADS, kv_len, HEAD_DIM) for part in memory] for kv_len in lengths]
    scales = [0.125 + 1e-4 * model for model in range(models)]
    return {name: [lambda f=f, k=k, v=v, scale=scale: f(q, k, v, scale=scale) for scale in scales for k, v in caches]
            for name, f in (("heed", heed.torch.scaled_dot_product_attention), ("torch", F.scaled_dot_product_attention))}


def fixed(dtype):
    return steps(dtype, [LONGEST])


def growing(dtype):
    return steps(dtype, range(1, LONGEST + 1))


def new_lengths(dtype):
    return steps(dtype, range(1, LONGEST + 1), MODELS)


def layers(dtype, batch, tokens, function):
    """The call of a layer at each length of a growing cache."""
    calls = {"heed": [], "torch": []}
    q = tensors(batch, 1, dtype)
    for kv_len in range(LONGEST // 2, LONGEST + 1):
        k, v = tensors(batch, kv_len, dtype), tensors(batch, kv_len, dtype)
        arguments = (batch, 1, kv_len, kv_len - 1, 0, function, None if tokens is None else tokens[:, :kv_len])
        for name, forward, mask in (("heed", heed.transformers.attention_forward, make_mask(*arguments)),
                                    ("torch", sdpa_attention_forward, masking_utils.sdpa_mask(*arguments, local_size=16))):
            calls[name].append(lambda f=forward, k=k, v=v, m=mask: f(MODULE, q, k, v, m, scaling=0.25))
    return calls


def padded(dtype):
    tokens = torch.arange(LONGEST) >= torch.tensor([[0], [5], [9], [2]])
    return layers(dtype, 4, tokens, masking_utils.causal_mask_function)


def window(dtype):
    return layers(dtype, 1, None, masking_utils.sliding_window_causal_mask_function(16))


CASES = {"fixed length": fixed, "growing cache": growing, "growing, new lengths": new_lengths, "padded batch": padded, "sliding window": window}


def median_us(calls, count):
    times = []
    for call in itertools.islice(calls, count):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(f"{'':24} {'Heed us':>8} {'PyTorch us':>11}")
    for case, make in CASES.items():
        for dtype in DTYPES:
            calls = {name: itertools.cycle(functions) for name, functions in make(DTYPES[dtype]).items()}
            best = dict.fromkeys(calls, float("inf"))
            for _ in range(options.rounds):
                for name in calls:
                    best[name] = min(best[name], median_us(calls[name], options.calls))
            rows.append({"case": case, "dtype": dtype, "us": best})
            print(f"{case + ' ' + dtype:24} {best['heed']:8.1f} {best['torch']:11.1f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine(), "torch": torch.__version__, "threads": options.threads, "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
