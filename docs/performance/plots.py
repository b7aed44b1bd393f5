"""Plots of the documentation, from bench/results: plots.py FOLDER. Needs matplotlib."""
import collections
import pathlib
import sys

import matplotlib.pyplot as plt
from tables import CPUS, HEADS, PEERS, entries, label, length_of, results_of

plt.switch_backend("svg")
plt.rcParams.update({"svg.hashsalt": "heed", "svg.fonttype": "none"})  # the same file from the same numbers
BYTES = {"f32": 4, "bf16": 2}
COLOURS = {"Heed": "#c0392b", "PyTorch": "#2980b9", "ONNX Runtime": "#27ae60", "OpenVINO": "#8e44ad"}


def series_of(results, places, dtype, rate):
    """By library {place: rate}, of places {case: place}; where a peer has two ways to a result, the faster one."""
    series = collections.defaultdict(dict)
    for case, place in places.items():
        for entry in entries(results, case, dtype):
            series["Heed"][place] = entry[rate]
            if entry["peer_ms"]:
                peer, speed = PEERS[entry["peer"]], entry[rate] * entry["ours_ms"] / entry["peer_ms"]
                series[peer][place] = max(speed, series[peer].get(place, 0))
    return series


def lengths_of(results, prefix):
    return {entry["case"]: length_of(entry["case"]) for entry in results["results"] if entry["case"].startswith(prefix)}


def where(name, results):
    machine = results["machine"]
    return f"{CPUS[name]}, {machine['threads']} threads, {machine['date'][:10]}"


def draw(path, title, x_label, y_label, series, roof, roof_name):
    """`roof`: by place, what the machine could do there."""
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for name, line in series.items():
        ours = name.startswith("Heed")
        axes.plot(*zip(*sorted(line.items())), color=COLOURS.get(name), marker="o" if ours else ".", label=name,
                  linewidth=2.2 if ours else 1.3)
    places = sorted(set().union(*series.values()))
    axes.plot(places, [roof(place) for place in places], color="#7f8c8d", linestyle="--", label=roof_name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [label(place) for place in places])
    axes.set(title=title, xlabel=x_label, ylabel=y_label, ylim=(0, 1.08 * max(map(roof, places))))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_prefill(folder, name, dtype):
    results = results_of(name)
    unit = results["ceilings"]["best_unit"][dtype]
    draw(folder / f"prefill_{dtype}.svg", f"Causal prefill in {dtype}, 8 / 2 heads of 128\n{where(name, results)}",
         "tokens: queries and keys", "GFLOP/s", series_of(results, lengths_of(results, "len_"), dtype, "gflops"),
         lambda _: results["ceilings"]["gflops"][unit], f"ceiling: {unit}")


def draw_decode_lengths(folder, name):
    results = results_of(name)
    draw(folder / "decode_lengths.svg", f"One decoding step in f32, cold, 8 / 2 heads of 128\n{where(name, results)}",
         "tokens: keys", "GB/s of keys and values", series_of(results, lengths_of(results, "kv_"), "f32", "gbps"),
         lambda _: results["ceilings"]["dram_gbps"], "ceiling: DRAM reads")


def draw_decode_heads(folder, name, dtype):
    results = results_of(name)
    ceilings = results["ceilings"]
    unit = ceilings["best_unit"][dtype]
    gflops = ceilings["gflops"][unit]

    def roof(kv_heads):  # 4 FLOPs for each of 32 query heads and each element of k, whose v is as long
        bytes_per_flop = 2 * kv_heads * BYTES[dtype] / (4 * 32)
        return min(ceilings["dram_gbps"], gflops * bytes_per_flop)

    title = f"One decoding step in {dtype}, cold, 32 query heads of 128, 4096 keys\n{where(name, results)}"
    draw(folder / f"decode_heads_{dtype}.svg", title, "heads of keys and values", "GB/s of keys and values",
         series_of(results, HEADS, dtype, "gbps"), roof, f"roofline: DRAM reads\nor {unit}")


def draw_all(folder):
    for dtype in ("f32", "bf16"):
        draw_prefill(folder, "peers_epyc_zen5", dtype)
        draw_decode_heads(folder, "peers_epyc_zen5", dtype)
    draw_decode_lengths(folder, "peers_epyc_zen5")


if __name__ == "__main__":
    draw_all(pathlib.Path(sys.argv[1]))
