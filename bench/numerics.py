#!/usr/bin/env python3
"""Errors of Heed against fp64 on the inputs that peers are measured on. Needs numpy, ml_dtypes and the built
`heed` command.

numerics.py HEED [--dtype f32|f16|bf16] [--kernel KERNEL] [--threads N] [--json FILE] [CASE ...]

Inputs: numpy's default_rng(1234), standard normal, q then k then v, rounded to dtype; the reference starts from the
rounded ones. Compared: every element of the seed cases, every second head of the others. Prints the largest and the RMS
error, compared with those of the exact result rounded to dtype (the floor). Exit status 1 when an RMS error is above the
case's limit, which is the level of the best peers.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Dtype:
    """An element type, and that which the command's files store it as."""
    name: str
    in_file: str
    element: type
    stored: type

    def rounded(self, x):
        return x.astype(self.element).astype(np.float32)

    def to_file(self, x):
        return x.astype(self.element).view(self.stored)

    def from_file(self, x):
        return x.view(self.element).astype(np.float32)


DTYPES = {dtype.name: dtype for dtype in (
    Dtype("f32", "F32", np.float32, np.float32), Dtype("f16", "F16", np.float16, np.float16),
    Dtype("bf16", "BF16", ml_dtypes.bfloat16, np.uint16))}


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
        return [dtype.rounded(random.standard_normal(shape, dtype=np.float32)) for shape in shapes]

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


def write_case(path, problem, dtype, tensors):
    """See docs/reference/case-file.md."""
    header, end = {"__metadata__": {"heed_problem": json.dumps(problem)}}, 0
    arrays = {name: dtype.to_file(tensor) for name, tensor in tensors.items()}
    for name, array in arrays.items():
        header[name] = {"dtype": dtype.in_file, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())


def read_out(path, dtype):
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    out = json.loads(content[8:begin])["out"]
    first, last = out["data_offsets"]
    stored = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[out["dtype"]]
    return dtype.from_file(np.frombuffer(content[begin + first:begin + last], stored).reshape(out["shape"]))


def run_heed(options, case, dtype, folder, q, k, v):
    layout = {name: "bhsd" for name in ("q", "k", "v", "out")}
    problem = {"dtype": dtype.name, "layout": layout, "position": "bottom_right", "causal": case.causal}
    write_case(folder / "case.safetensors", problem, dtype, {"q": q, "k": k, "v": v})
    command = [options.heed, "run", str(folder / "case.safetensors"), "--threads", str(options.threads)]
    if options.kernel:
        command += ["--kernel", options.kernel]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}{done.stdout}")
    return read_out(folder / "case.out.safetensors", dtype)


def errors_of(options, case):
    dtype = DTYPES[options.dtype]
    q, k, v = case.inputs(dtype)
    with tempfile.TemporaryDirectory() as folder:
        out = run_heed(options, case, dtype, pathlib.Path(folder), q, k, v)
    shape = (case.batch, case.num_heads, case.q_len, case.head_dim_v)
    if out.shape != shape:
        sys.exit(f"{case.name}: out has shape {out.shape}, not {shape}")
    errors, floors = [], []
    for b, h in case.heads():
        exact = reference(case, q, k, v, b, h)
        errors.append(out[b, h].astype(np.float64) - exact)
        floors.append(dtype.rounded(exact).astype(np.float64) - exact)

    def summary(values):
        values = np.stack(values)
        return float(np.abs(values).max()), float(np.sqrt((values * values).mean()))

    (max_error, rms), (max_floor, rms_floor) = summary(errors), summary(floors)
    limit = case.rms_limit_f32 if dtype.name == "f32" else case.rms_limit_16 * rms_floor
    return {"case": case.name, "dtype": dtype.name, "max_error": max_error, "rms_error": rms, "max_floor": max_floor,
            "rms_floor": rms_floor, "rms_limit": limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heed")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--kernel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    unknown = set(options.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
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
