"""Heed's gradients compared with PyTorch's, in turns: backward.py HEED_BACKWARD_BENCH [--rounds 20] [--threads 2] [--json FILE].

A round times forward and backward of one library, then of the other; the fastest of all rounds count. PyTorch's backward
is autograd's of scaled_dot_product_attention, for q, k and v at once, from a graph that is kept."""
import argparse
import json
import os
import subprocess
import time

CASES = {  # batch, num_heads, num_kv_heads, len, head_dim, causal, as heed_bench has them
    "p2k_gqa": (1, 32, 8, 2048, 128, True),
    "p1k_d64_full": (1, 8, 8, 1024, 64, False),
    "bert_8x512": (8, 12, 12, 512, 64, False),
}
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


class Ours:
    def __init__(self, bench, threads, dtype, case):
        self._child = subprocess.Popen([bench, str(threads), dtype, "0", case], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self):
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return [float(number) for number in self._child.stdout.readline().split()]

    def close(self):
        self._child.stdin.close()
        self._child.wait()


class Theirs:
    def __init__(self, dtype, case):
        import torch

        self._torch = torch
        batch, num_heads, num_kv_heads, length, head_dim, self._causal = CASES[case]
        self._gqa = num_heads != num_kv_heads

        def tensor(heads):  # [batch, len, heads, head_dim] in memory, as ours
            x = torch.randn(batch, length, heads, head_dim, dtype=getattr(torch, DTYPES[dtype])).transpose(1, 2)
            return x.requires_grad_()

        self._inputs = [tensor(num_heads), tensor(num_kv_heads), tensor(num_kv_heads)]
        self._out = self._forward()
        self._dout = torch.randn_like(self._out)

    def _forward(self):
        return self._torch.nn.functional.scaled_dot_product_attention(*self._inputs, is_causal=self._causal, enable_gqa=self._gqa)

    def round(self):
        start = time.perf_counter()
        with self._torch.no_grad():
            self._forward()
        middle = time.perf_counter()
        self._torch.autograd.grad(self._out, self._inputs, self._dout, retain_graph=True)
        return [1e3 * (middle - start), 1e3 * (time.perf_counter() - middle)]


def gflop(case):
    """The FLOPs of the five products of backward."""
    batch, num_heads, _, length, head_dim, causal = CASES[case]
    return 5 * 2e-9 * batch * num_heads * length * length * head_dim / (2 if causal else 1)


def main():
    options = parse()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])
    results = []
    for dtype in options.dtype.split(","):
        for case in CASES:
            libraries = {"heed": Ours(options.bench, options.threads, dtype, case), "pytorch": Theirs(dtype, case)}
            best = {name: [float("inf")] * 2 for name in libraries}
            for _ in range(options.rounds):
                for name, library in libraries.items():
                    best[name] = [min(pair) for pair in zip(best[name], library.round())]
            libraries["heed"].close()
            ours, theirs = best["heed"], best["pytorch"]
            print(f"{case:14} {dtype:4} backward: heed {ours[1]:8.2f} ms, {gflop(case) / ours[1] * 1e3:6.1f} GFLOP/s, {ours[1] / ours[0]:.2f} of "
                  f"forward; PyTorch {theirs[1]:8.2f} ms, {theirs[1] / theirs[0]:.2f}; ratio {theirs[1] / ours[1]:.2f}", flush=True)
            results.append({"case": case, "dtype": dtype, "threads": options.threads, "heed_forward_ms": ours[0], "heed_backward_ms": ours[1],
                            "pytorch_forward_ms": theirs[0], "pytorch_backward_ms": theirs[1]})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
