#!/usr/bin/env python3
"""Errors of Heed against fp64 on the inputs that peers are measured on. Needs numpy, ml_dtypes and the built package.

numerics.py FOLDER_OF_PACKAGE [--dtype f32|f16|bf16] [--kernel KERNEL] [--threads N] [--json FILE] [CASE ...]

Inputs: numpy's default_rng(1234), standard normal, q then k then v, rounded to dtype; the reference starts from the
rounded ones. Compared: every element of the seed cases, every second head of the others. Prints the largest and the RMS
error, compared with those of the exact result rounded to dtype (the floor). Exit status 1 when an RMS error is above the
case's limit, which is the level of the best peers.
"""

import argparse
import json
import os
import pathlib
import sys
from dataclasses import dataclass

import ml_dtypes
import numpy as np

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    num_heads: int
    num_kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    head_dim_v: int
    causal: bool
    every_head: bool
    rms_limit_f32: float
    rms_limit_16: float  # times the floor

    def inputs(self, dtype):
        random = np.random.default_rng(1234)
        shapes = [
            (self.batch, self.num_heads, self.q_len, self.head_dim),
            (self.batch, self.num_kv_heads, self.kv_len, self.head_dim),
            (self.batch, self.num_kv_heads, self.kv_len, self.head_dim_v),
        ]
        return [random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]

    def heads(self):
        if self.every_head:
            return [(b, h) for b in range(self.batch) for h in range(self.num_heads)]
        return [(0, h) for h in range(0, self.num_heads, 2)]


# The limits are those of PyTorch's fused attention on the same inputs.
CASES = [
    Case("seed1", 10, 8, 1, 100, 100, 16, 16, True, True, 4.4e-8, 1.28),
    Case("seed2_dv111", 24, 8, 8, 100, 100, 64, 111, True, True, 6.1e-8, 1.28),
    Case("seed3", 3, 8, 4, 2, 2, 16, 16, False, True, 5.0e-8, 1.28),
    Case("p2k_gqa", 1, 32, 8, 2048, 2048, 128, 128, True, False, 3.5e-8, 1.28),
    Case("d4k_gqa", 1, 32, 8, 1, 4096, 128, 128, False, False, 2.2e-8, 1.35),
]


def reference(case, q, k, v, b, h):
    """fp64 attention of one head, [q_len, head_dim_v]."""
    kv_head = h // (case.num_heads // case.num_kv_heads)
    keys, values = k[b, kv_head].astype(np.float64), v[b, kv_head].astype(np.float64)
    logits = q[b, h].astype(np.float64) @ keys.T / np.sqrt(np.float64(case.head_dim))
    if case.causal:
        positions = np.arange(case.q_len)[:, None] + case.kv_len - case.q_len
        logits = np.where(np.arange(case.kv_len)[None] <= positions, logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights @ values / weights.sum(1, keepdims=True)


def run_heed(options, case, q, k, v):
    import heed

    arrays = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    out = heed.attention(*arrays, causal=case.causal, position="bottom_right", max_threads=options.threads)
    return out.transpose(0, 2, 1, 3)


def errors_of(options, case):
    dtype = DTYPES[options.dtype]
    q, k, v = case.inputs(dtype)
    out = run_heed(options, case, q, k, v)
    errors, floors = [], []
    for b, h in case.heads():
        exact = reference(case, q, k, v, b, h)
        errors.append(out[b, h].astype(np.float64) - exact)
        floors.append(exact.astype(dtype).astype(np.float64) - exact)

    def summary(values):
        values = np.stack(values)
        return float(np.abs(values).max()), float(np.sqrt((values * values).mean()))

    (max_error, rms), (max_floor, rms_floor) = summary(errors), summary(floors)
    limit = case.rms_limit_f32 if options.dtype == "f32" else case.rms_limit_16 * rms_floor
    return {"case": case.name, "dtype": options.dtype, "max_error": max_error, "rms_error": rms, "max_floor": max_floor,
            "rms_floor": rms_floor, "rms_limit": limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="build/release/python")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--kernel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    unknown = set(options.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    sys.path.insert(0, options.package)
    if options.kernel:
        os.environ["HEED_FORCE_KERNEL"] = options.kernel
    print(f"{'case':<14}{'max error':>12}{'rms error':>12}{'rms limit':>12}{'max floor':>12}{'rms floor':>12}")
    results = []
    for case in CASES:
        if not options.cases or case.name in options.cases:
            result = errors_of(options, case)
            results.append(result)
            print("{case:<14}{max_error:12.2e}{rms_error:12.2e}{rms_limit:12.2e}{max_floor:12.2e}{rms_floor:12.2e}"
                  .format(**result), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(result["rms_error"] <= result["rms_limit"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
