"""Numbers and plots of the documentation, from bench/results: tables.py [--check | --plots].

Writes the tables between <!-- numbers: NAME --> and <!-- end of the numbers --> in README.md and docs/performance/index.md. --check
fails where a table is not that of the results. --plots draws docs/performance/*.svg too, which needs matplotlib.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ROOT / "README.md", ROOT / "docs/performance/index.md"
TABLE = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end of the numbers -->\n)", re.DOTALL)
PEERS = {"torch_sdpa": "PyTorch", "torch_matmuls": "PyTorch", "torch_linear": "PyTorch", "ort_gqa": "ONNX Runtime",
         "ort_attention": "ONNX Runtime", "ort_linear": "ONNX Runtime", "openvino_sdpa": "OpenVINO", "openvino_cache": "OpenVINO", "openvino_linear": "OpenVINO"}
CASES = {
    "p512_mha": "prefill 512, 32 heads of 128, causal",
    "p2k_gqa": "prefill 2048, 32 / 8 heads of 128, causal",
    "p2k_mqa": "prefill 2048, 32 / 1 heads of 128, causal",
    "p8k_gqa": "prefill 8192, 32 / 8 heads of 128, causal",
    "p1k_d64_full": "1024 x 1024, 8 heads of 64",
    "bert_8x512": "8 sequences of 512, 12 heads of 64",
    "c256_4k_gqa": "256 queries on 4096 keys, 32 / 8 heads of 128",
    "win256_4k": "4096 x 4096, window of 256",
    "add_11qk": "1024 x 1024, additive mask",
    "bool_11qk": "1024 x 1024, boolean mask",
    "dk192_dv128": "1024 x 1024, head dims 192 and 128",
    "d4k_mha": "decode, 4096 keys, 32 heads of 128, cold",
    "d4k_gqa": "decode, 4096 keys, 32 / 8 heads of 128, cold",
    "d4k_g8": "decode, 4096 keys, 32 / 4 heads of 128, cold",
    "d4k_g16": "decode, 4096 keys, 32 / 2 heads of 128, cold",
    "d4k_mqa": "decode, 4096 keys, 32 / 1 heads of 128, cold",
    "d32k_gqa": "decode, 32768 keys, 32 / 8 heads of 128, cold",
    "mla_h16": "decode, 4096 keys of 576 (values 512), 16 heads, cold",
    "mla_h128": "decode, 4096 keys of 576 (values 512), 128 heads, cold",
    "q8_4k_gqa": "8 queries on 4096 keys, 32 / 8 heads of 128",
    "q8_4k_mha": "8 queries on 4096 keys, 32 heads of 128",
    "linear_2048x4096x4096": "dense layer, 2048 rows, 4096 to 4096",
}
README_ROWS = (("p2k_gqa", "f32"), ("p2k_gqa", "bf16"), ("p8k_gqa", "bf16"), ("bert_8x512", "f32"), ("bool_11qk", "f32"),
               ("d4k_gqa", "f32"), ("d4k_gqa", "bf16"), ("linear_2048x4096x4096", "f32"))


def results_of(name):
    return json.loads((ROOT / f"bench/results/{name}.json").read_text())


# What the files' own "cpu" does not say.
CPUS = {"peers_epyc_zen5": "AMD EPYC (Zen 5)", "peers_epyc_zen3": "AMD EPYC (Zen 3)", "peers_xeon_amx": "Intel Xeon with AMX",
        "peers_xeon_avx512": "Intel Xeon (Emerald Rapids), AMX switched off by its host"}

# Heads of keys and values of the cases with 32 query heads and 4096 keys, as far as they were measured.
HEADS = {"d4k_mha": 32, "d4k_g2": 16, "d4k_gqa": 8, "d4k_g8": 4, "d4k_g16": 2, "d4k_mqa": 1}


def about(name, command):
    """Machine, ceilings and command of a file of ./dev bench --peers --results."""
    results = results_of(name)
    machine, ceilings, peers = results["machine"], results["ceilings"], results["peers"]
    units = ", ".join(f"{unit} {rate:.0f} GFLOP/s" for unit, rate in ceilings["gflops"].items()
                      if unit in ceilings["best_unit"].values())
    return paragraph(f"{CPUS[name]}, a virtual machine with {machine['cpus']} cores, {machine['threads']} threads, {machine['date'][:10]}. "
            f"Ceilings of the same run: {units}, DRAM {ceilings['dram_gbps']:.0f} GB/s. PyTorch {peers['torch']}, ONNX Runtime "
            f"{peers['onnxruntime']}, OpenVINO {peers['openvino']}. File: `bench/results/{name}.json`. Repeat: `{command}`.")


def paragraph(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n\n"


def table(head, rows):
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def entries(results, case, dtype):
    """Without the warm ones, those with int8 keys and those that are held to an instruction set."""
    of_case = [e for e in results["results"] if e["case"] == case and e["dtype"] == dtype and e["kv_dtype"] == dtype
               and e["temperature"] != "warm" and not e.get("isa")]
    return [e for e in of_case if e["kernel"] == of_case[0]["kernel"]]


def best_entry(results, case, dtype):
    """The one with the fastest peer: of the least median of the rounds' ratios."""
    return min((e for e in entries(results, case, dtype) if e["peer_ms"] and e["peer"] in PEERS), key=lambda e: e["ratio"])


def row(results, case, dtype):
    best = best_entry(results, case, dtype)
    rate = f"{best['gbps']:.1f} GB/s" if "gbps" in best else f"{best['gflops']:.0f} GFLOP/s"
    ceiling = {"DRAM read": "DRAM", "AMX bf16": "AMX"}.get(best["ceiling_name"], best["ceiling_name"])
    return [CASES[case], dtype, f"{best['ours_ms']:.2f} ms", rate, f"{100 * best['share_of_ceiling']:.0f} % of {ceiling}",
            PEERS[best["peer"]], f"{best['ratio']:.2f}"]


HEAD = ("case", "type", "Heed", "rate", "of the ceiling", "best peer", "its time / Heed's")


def peers_table(name, command, dtypes, rows=None):
    results = results_of(name)
    rows = rows or [(case, dtype) for case in CASES for dtype in dtypes if entries(results, case, dtype)]
    return about(name, command) + table(HEAD, [row(results, *each) for each in rows])


def backward_table(name):
    rows = [[CASES[e["case"]], e["dtype"], f"{e['heed_backward_ms']:.1f} ms", f"{e['heed_backward_ms'] / e['heed_forward_ms']:.2f}",
             f"{e['pytorch_backward_ms'] / e['heed_backward_ms']:.2f}"] for e in results_of(name)]
    head = ("case", "type", "Heed", "of its own forward (2.5 by FLOPs)", "PyTorch's time / Heed's")
    return paragraph(f"{MACHINES[name]} File: `bench/results/{name}.json`. Repeat: `./dev bench --peers --backward`.") + table(head, rows)


MACHINES = {
    "backward_epyc_zen5": "2 cores of an AMD EPYC (Zen 5) virtual machine, minima of 20 rounds in turns.",
    "backward_xeon_avx512": "2 cores of an Intel Xeon (Cascade Lake) virtual machine, AVX-512 without BF16, minima of 15 rounds in turns.",
    "backward_xeon_avx512bf16": "2 cores of an Intel Xeon (Emerald Rapids) virtual machine, AMX switched off by its host, minima of 12 rounds in turns.",
    "backward_xeon_amx": "2 cores of an Intel Xeon virtual machine with AMX, in turns; f32 without AMX.",
    "generate_xeon_amx": "2 cores of an Intel Xeon virtual machine with AMX, random weights, hidden size 256, 4 layers.",
}


def generate_table(name):
    results = results_of(name)
    models = dict.fromkeys(r["model"] for r in results["rows"])
    rows = []
    for model in models:
        ratios = sorted(r["tokens_per_second"]["heed"] / r["tokens_per_second"]["sdpa"] for r in results["rows"]
                        if r["model"] == model and r.get("size") == "small")
        rows.append([model, f"{ratios[0]:.2f} to {ratios[-1]:.2f}"])
    about_run = (f"{MACHINES[name]} PyTorch {results['torch']}, transformers {results['transformers']}. File: `bench/results/{name}.json`. "
                 "Repeat: `PYTHONPATH=build/release/python .venv-torch/bin/python bench/peers/generate.py --sizes small --json FILE`.")
    return paragraph(about_run) + table(("model", "tokens a second, Heed / sdpa"), rows)


def slope(points):
    """Least squares of log(time) over log(length), over the longer half."""
    points = sorted(points)[len(points) // 2 - 1:]
    return statistics.linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points]).slope


def growth_table(name):
    results, rows = results_of(name), []
    for prefix, what in (("len", "prefill, 8 / 2 heads of 128, causal"), ("kv", "decode, 8 / 2 heads of 128, cold")):
        for dtype in ("f32", "bf16"):
            ours = {length_of(e["case"]): e for e in results["results"] if e["case"].startswith(f"{prefix}_")
                    and e["dtype"] == dtype and e["temperature"] != "warm"}
            exponent = slope([(length, e["ours_ms"]) for length, e in ours.items()])
            rows.append([what, dtype, f"{label(min(ours))} to {label(max(ours))}", f"length^{exponent:.2f}",
                         f"{max(e['workspace_bytes'] for e in ours.values()) / 1e6:.2f} MB"])
    head = ("case", "type", "lengths", "time grows as", "largest workspace")
    return about(name, "./dev bench --peers --cases 'len_*,kv_*' --results FILE") + table(head, rows)


GPU_PREFILL = {
    "mha_2048_d128_causal": "2048, 32 heads of 128, causal", "mha_4096_d128_full": "4096, 32 heads of 128",
    "mha_16384_d128_causal": "16384, 32 heads of 128, causal", "gqa_8192_d128_causal": "8192, 32 / 8 heads of 128, causal",
    "mha_2048_d64_causal": "2048, 32 heads of 64, causal", "mha_4096_d64_full": "4096, 32 heads of 64",
    "mha_16384_d64_causal": "16384, 32 heads of 64, causal", "d80_causal": "4096, 32 heads of 80, causal",
    "d96_causal": "4096, 32 heads of 96, causal", "d192x128_causal": "4096, 32 heads of 192 and 128, causal",
    "d256_causal": "4096, 32 heads of 256, causal", "d72_causal": "4096, 32 heads of 72, causal",
    "mask_full": "4096, 32 heads of 128, boolean mask", "varlen_causal": "8 sequences, 1 to 4096 long, 32 heads of 128, causal",
    "window_1024": "16384, 32 heads of 128, window of 1024"}
GPU_DECODE = {
    "decode_b16_h32x8_kv8192_contiguous_f16": "16 sequences, 8192 keys, 32 / 8 heads",
    "decode_b64_h32x8_kv32768_contiguous_f16": "64, 32768, 32 / 8", "decode_b64_h32x8_kv32768_page16_f16": "the same, pages of 16",
    "decode_b64_h32x8_kv32768_page64_i8": "the same, pages of 64, int8 keys",
    "decode_b16_h32x1_kv8192_contiguous_f16": "16, 8192, 32 / 1", "decode_b64_h32x1_kv32768_contiguous_f16": "64, 32768, 32 / 1",
    "decode_b1_h32x8_kv131072_contiguous_f16": "1, 131072, 32 / 8"}
BACKENDS = {"flash": "FlashAttention-2", "cudnn": "cuDNN", "efficient": "memory-efficient"}


def gpu_ratio(ratios, peer):
    return f"{ratios[peer]:.2f}" if peer in ratios else "-"


def gpu_rows(results, names, dtype="f16"):
    """Of prefill or of gradients: a row for each case, ratios to PyTorch's backends."""
    for case, text in names.items():
        of_case = [e for e in results if e["case"] == case and e["dtype"] == dtype]
        if of_case:
            ratios = {e["peer"].split()[-1]: e["ratio"] for e in of_case if e["peer"]}
            yield [text, f"{of_case[0]['ours_ms']:.2f} ms", f"{of_case[0]['tflops']:.0f} TFLOP/s", *(gpu_ratio(ratios, p) for p in BACKENDS)]


def gpu_decode_row(what, entry):
    ratio = f"{entry['ratio']:.2f}" if entry["ratio"] else "-"
    return [what, f"{entry['ours_ms']:.3f} ms", f"{entry['gbps']:.0f} GB/s", f"{100 * entry['share_of_read']:.0f} %", ratio]


def gpu_tables(name):
    results = results_of(name)
    machine, ceilings, head = results["machine"], results["ceilings"], tuple(f"{text} / Heed" for text in BACKENDS.values())
    text = paragraph(f"{machine['gpu']}, driver of CUDA {machine['cuda_driver']}, {machine['date'][:10]}. Ceilings of the same run: matrix "
                     f"product of 8192 in f16 {ceilings['matmul_tflops']['f16']:.0f} TFLOP/s, copy {ceilings['copy_gbps']:.0f} GB/s. Peers: the "
                     f"backends of scaled_dot_product_attention in PyTorch {machine['torch']}. f16; bf16 is within 3 %. File: "
                     f"`bench/results/{name}.json`. Repeat: `./dev gpu`.")
    text += table(("prefill", "Heed", "rate", *head), gpu_rows(results["results"], GPU_PREFILL)) + "\n"
    decode = {e["case"]: e for e in results["decode"] if e["dtype"] == "f16"}
    text += table(("decode, heads of 128", "Heed", "keys and values", "of a kernel that only reads", "best backend / Heed"),
                  [gpu_decode_row(what, decode[case]) for case, what in GPU_DECODE.items() if case in decode]) + "\n"
    return text + table(("gradients", "Heed", "rate", *head), gpu_rows(results["gradients"], GPU_PREFILL))


def length_of(case):
    kind, number = case.split("_")
    return int(number.rstrip("k")) * (1024 if kind == "kv" else 1)


def label(length):
    return str(length) if length < 1024 else f"{length // 1024}k"


TABLES = {
    "readme": lambda: peers_table("peers_epyc_zen5", "./dev bench --peers --results FILE", (), README_ROWS),
    "epyc": lambda: peers_table("peers_epyc_zen5", "./dev bench --peers --results FILE", ("f32", "bf16")),
    "avx2": lambda: peers_table("peers_epyc_zen3", "./dev bench --peers --dtype f32 --results FILE", ("f32",)),
    "xeon": lambda: peers_table("peers_xeon_avx512", "./dev bench --peers --dtype f32,bf16,f16 --results FILE", ("f32", "bf16", "f16")),
    "amx": lambda: peers_table("peers_xeon_amx", "./dev bench --peers --cases 'p*,bert_8x512,c256_4k_gqa,*_11qk,dk192_dv128,linear_*,d4k_mqa,d4k_g16,mla_*,q*_4k_*' --dtype bf16 --results FILE",
                               ("bf16",)),
    "backward-epyc": lambda: backward_table("backward_epyc_zen5"),
    "backward-xeon": lambda: backward_table("backward_xeon_avx512"),
    "backward-xeon-bf16": lambda: backward_table("backward_xeon_avx512bf16"),
    "backward-amx": lambda: backward_table("backward_xeon_amx"),
    "generate": lambda: generate_table("generate_xeon_amx"),
    "gpu": lambda: gpu_tables("cuda_h100_80gb_hbm3"),
    "growth": lambda: growth_table("peers_epyc_zen5"),
}


def written(text):
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plots", action="store_true")
    options = parser.parse_args()
    for page in PAGES:
        text = page.read_text()
        if options.check and written(text) != text:
            sys.exit(f"{page.name}: a table is not that of bench/results; ./dev numbers writes it")
        if not options.check:
            page.write_text(written(text))
    if options.plots:
        import plots
        plots.draw_all(ROOT / "docs/performance")


if __name__ == "__main__":
    main()
