"""Speed over length: plots, and the exponents of time, from a file of ./dev bench --peers --cases 'len_*,kv_*' --results.

    lengths.py RESULTS FOLDER

Writes FOLDER/prefill_{f32,bf16}.svg (GFLOP/s over q_len = kv_len) and FOLDER/decode.svg (GB/s of keys and values over
kv_len, cold), each with ours, the peers and the ceiling, and prints the slope of log(time) over log(length), 2 and 1 for
work that grows as it must, and the bytes of the workspace, which must not grow with q_len * kv_len."""
import collections
import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 150, 40, 48
COLOURS = {"Heed": "#c0392b", "Heed bf16": "#e67e22", "torch_sdpa": "#2980b9", "ort_gqa": "#27ae60",
           "ort_attention": "#16a085", "openvino_sdpa": "#8e44ad", "openvino_cache": "#8e44ad", "ceiling": "#7f8c8d"}


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
    points = [(math.log(length), math.log(time)) for length, time in sorted(seconds.items())]
    points = points[len(points) // 2 - 1:]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def label(length):
    return str(length) if length < 1024 else f"{length // 1024}k"


def svg(title, unit, series, ceiling):
    lengths = sorted(set().union(*series.values()))
    top = 1.08 * max([ceiling] + [rate for line in series.values() for rate in line.values()])

    def x(length):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(length / lengths[0]) / math.log(lengths[-1] / lengths[0])

    def y(rate):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / top

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
             f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>']
    for length in lengths:
        parts.append(f'<text x="{x(length):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label(length)}</text>')
    step = 10 ** math.floor(math.log10(top / 2))
    step *= 2 if top / step > 8 else 1
    for tick in range(0, int(top / step) + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>'
                     f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})" text-anchor="middle">{unit}</text>')
    lines = {**series, "ceiling": {length: ceiling for length in (lengths[0], lengths[-1])}}
    for at, (name, line) in enumerate(lines.items()):
        colour = COLOURS.get(name, "black")
        points = " ".join(f"{x(length):.1f},{y(rate):.1f}" for length, rate in sorted(line.items()))
        dash = ' stroke-dasharray="5 4"' if name == "ceiling" else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
                     f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 18 * at + 10}" fill="{colour}">{name}</text>')
    return "".join(parts) + "</svg>\n"


def main(results_file, folder):
    results = json.loads(pathlib.Path(results_file).read_text())
    ceilings, folder = results["ceilings"], pathlib.Path(folder)
    machine = results["machine"]
    where = f"{machine['cpu']}, {machine['threads']} threads"
    for dtype in ("f32", "bf16"):
        series, seconds, workspace = series_of(results, "len_", dtype, "gflops")
        ceiling = ceilings["gflops"][ceilings["best_unit"][dtype]]
        title = f"Causal prefill, {dtype}, 8/2 heads of 128; {where}"
        (folder / f"prefill_{dtype}.svg").write_text(svg(title, "GFLOP/s", series, ceiling))
        print(f"prefill {dtype}: {summary(seconds, workspace)}")
    both = {}
    for dtype, name in (("f32", "Heed"), ("bf16", "Heed bf16")):
        series, seconds, workspace = series_of(results, "kv_", dtype, "gbps")
        both[name] = series.pop("Heed")
        if dtype == "f32":
            both.update(series)
        print(f"decode {dtype}: {summary(seconds, workspace)}")
    title = f"Decode, cold, 8/2 heads of 128; {where}; peers: f32"
    (folder / "decode.svg").write_text(svg(title, "GB/s of keys and values", both, ceilings["dram_gbps"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
