"""Speed over length: plots, and the exponents of time, from a file of ./dev bench --peers --cases 'len_*,kv_*' --results.

    lengths.py RESULTS FOLDER

Writes FOLDER/prefill_{f32,bf16}.svg (GFLOP/s over q_len = kv_len) and FOLDER/decode.svg (GB/s of keys and values over
kv_len, cold), each with ours, the peers and the ceiling, and prints the slope of log(time) over log(length), 2 and 1 for
work that grows as it must, and the bytes of the workspace, which must not grow with q_len * kv_len. Needs matplotlib."""
import collections
import json
import math
import pathlib
import statistics
import sys

import matplotlib.pyplot as plt

plt.switch_backend("svg")
COLOURS = {"Heed": "#c0392b", "Heed bf16": "#e67e22", "torch_sdpa": "#2980b9", "ort_gqa": "#27ae60",
           "ort_attention": "#16a085", "openvino_sdpa": "#8e44ad", "openvino_cache": "#8e44ad"}


def length_of(case):
    kind, number = case.split("_")
    return int(number.rstrip("k")) * (1024 if kind == "kv" else 1)


def series_of(results, prefix, dtype, rate):
    """By name: {length: rate}; and the time and the workspace of ours by length."""
    series, seconds, workspace = collections.defaultdict(dict), {}, {}
    for entry in results["results"]:
        if not entry["case"].startswith(prefix) or entry["dtype"] != dtype or entry["temperature"] == "warm":
            continue
        length = length_of(entry["case"])
        series["Heed"][length] = entry[rate]
        seconds[length] = entry["ours_ms"] / 1000
        workspace[length] = entry["workspace_bytes"]
        if entry.get("peer_ms"):
            series[entry["peer"]][length] = entry[rate] * entry["ours_ms"] / entry["peer_ms"]
    return series, seconds, workspace


def summary(seconds, workspace):
    first, last = min(workspace), max(workspace)
    return (f"time ~ length^{slope(seconds):.2f}; workspace {workspace[first]} bytes at {label(first)}, "
            f"{workspace[last]} at {label(last)}")


def slope(seconds):
    """Least squares of log(time) over log(length), over the longer half."""
    points = sorted(seconds.items())
    lengths, times = zip(*points[len(points) // 2 - 1:])
    return statistics.linear_regression([math.log(x) for x in lengths], [math.log(x) for x in times]).slope


def label(length):
    return str(length) if length < 1024 else f"{length // 1024}k"


def draw(path, title, unit, series, ceiling):
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, line in series.items():
        axes.plot(*zip(*sorted(line.items())), color=COLOURS.get(name, "black"), marker=".", label=name)
    axes.axhline(ceiling, color="#7f8c8d", linestyle="--", label="ceiling")
    lengths = sorted(set().union(*series.values()))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [label(length) for length in lengths])
    axes.set(title=title, ylabel=unit, ylim=(0, None))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)
    plt.close(figure)


def main(results_file, folder):
    results = json.loads(pathlib.Path(results_file).read_text())
    ceilings, folder = results["ceilings"], pathlib.Path(folder)
    machine = results["machine"]
    where = f"{machine['cpu']}, {machine['threads']} threads"
    for dtype in ("f32", "bf16"):
        series, seconds, workspace = series_of(results, "len_", dtype, "gflops")
        ceiling = ceilings["gflops"][ceilings["best_unit"][dtype]]
        title = f"Causal prefill, {dtype}, 8/2 heads of 128; {where}"
        draw(folder / f"prefill_{dtype}.svg", title, "GFLOP/s", series, ceiling)
        print(f"prefill {dtype}: {summary(seconds, workspace)}")
    both = {}
    for dtype, name in (("f32", "Heed"), ("bf16", "Heed bf16")):
        series, seconds, workspace = series_of(results, "kv_", dtype, "gbps")
        both[name] = series.pop("Heed")
        if dtype == "f32":
            both.update(series)
        print(f"decode {dtype}: {summary(seconds, workspace)}")
    title = f"Decode, cold, 8/2 heads of 128; {where}; peers: f32"
    draw(folder / "decode.svg", title, "GB/s of keys and values", both, ceilings["dram_gbps"])


if __name__ == "__main__":
    main(*sys.argv[1:])
