"""Draws the milliseconds of a step over heads of keys and values: plot.py RESULTS PLOT, from a file of heed_decode --out.

Where matplotlib is not installed it says so and draws nothing."""
import json
import pathlib
import sys


def draw(results, path, plt):
    rows = results["results"]
    names = [f"{row['kv_heads']} head{'s' * (row['kv_heads'] > 1)}\n{row['cache_gigabytes']:.2f} GB" for row in rows]
    attention = [row["attention_ms"] for row in rows]
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    steps = axes.bar(names, [row["step_ms"] for row in rows], 0.6, color="#b8c8dc", label="projections")
    axes.bar_label(steps, fmt="%.2f")
    axes.bar(names, attention, 0.6, color="#3f6fa3", label="attention alone")
    bandwidth, (many, one) = results["bandwidth_gbps"], results["paper_us"]
    axes.scatter(names, [1e3 * row["cache_gigabytes"] / bandwidth for row in rows], s=2000, c="#c0392b", marker="_",
                 label=f"the cache at {bandwidth:.0f} GB/s", zorder=3)
    axes.set_title(f"Milliseconds per step of {results['batch']} sequences, by heads of keys and values\n"
                   f"{rows[0]['step_ms'] / rows[-1]['step_ms']:.1f} times faster with the fewest; "
                   f"the paper on a TPUv2: {many:.0f} to {one:.1f} us a token, {many / one:.0f} times", fontsize="medium")
    axes.legend(markerscale=0.3)
    figure.savefig(path)


def main(results, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("  no plot: matplotlib is not installed")
        return
    plt.switch_backend("svg")
    draw(json.loads(pathlib.Path(results).read_text()), path, plt)
    print(f"  plot: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
