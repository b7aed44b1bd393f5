"""heed_linear beside PyTorch's linear, interleaved: linear.py HEED_LINEAR_BENCH [--rounds N] [--threads N] [--json FILE].

Run with a Python that has torch. Each round times both once per shape, in turns; the fastest calls count.
"""
import argparse
import json
import os
import platform
import subprocess
import time

SHAPES = [(2048, 4096, 4096), (2048, 1024, 3072), (1000, 512, 160), (128, 4096, 4096), (16, 4096, 4096), (16, 1024, 3072),
          (1, 4096, 4096)]


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    import torch  # after its environment

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    best = {}
    for _ in range(options.rounds):
        for shape in SHAPES:
            for name, dtype in types.items():
                rows, dim_in, dim_out = shape
                x, layer = torch.rand(rows, dim_in).to(dtype) - 0.5, torch.nn.Linear(dim_in, dim_out).to(dtype)
                end, theirs = time.perf_counter() + options.seconds, float("inf")
                while time.perf_counter() < end:
                    start = time.perf_counter()
                    layer(x)
                    theirs = min(theirs, (time.perf_counter() - start) * 1e3)
                command = [options.program, *map(str, shape), name, str(options.threads), str(options.seconds)]
                ours = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                known = best.get((shape, name), (float("inf"), float("inf")))
                best[shape, name] = (min(ours, known[0]), min(theirs, known[1]))
    results = []
    for (shape, name), (ours, theirs) in best.items():
        gflops = 2 * shape[0] * shape[1] * shape[2] * 1e-6 / ours
        results.append({"rows": shape[0], "dim_in": shape[1], "dim_out": shape[2], "dtype": name, "ours_ms": ours,
                        "torch_ms": theirs, "speed": theirs / ours, "gflops": gflops})
        print(f"{str(shape):20} {name:5} {ours:9.3f} ms  torch {theirs:9.3f} ms  {theirs / ours:5.2f}x  {gflops:7.1f} GFLOP/s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"cpu": cpu_name(), "threads": options.threads, "rounds": options.rounds, "torch": torch.__version__,
                       "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
