"""Outcomes as a list of entries, one for each peer of a measurement; as a table; as files."""
import importlib.metadata
import json
import pathlib

PACKAGES = ("torch", "onnxruntime", "openvino", "numpy")
NO_PEER = "the ceiling is what counts: no peer can be held to this instruction set here"


def standings(heed_report):
    """heed_bench's results by what tells measurements apart."""
    return {(r["case"], r["dtype"], r["kv_dtype"], r["temperature"], r["kernel"]): r for r in heed_report["results"]}


def ours_fields(outcome, heed_report):
    m = outcome.measurement
    fields = {"case": m.case, "dtype": m.dtype, "kv_dtype": m.kv or m.dtype, "temperature": m.temperature,
              "kernel": outcome.kernel, "quiet_rounds": outcome.quiet_rounds, "ours_ms": outcome.ours_ms}
    if outcome.ours_ms is None:
        return {**fields, "share_of_ceiling": None}
    if m.linear:
        gflops, unit = m.flops() / outcome.ours_ms * 1e-6, heed_report["ceilings"]["best_unit"][m.dtype]
        ceiling = heed_report["ceilings"]["gflops"][unit]
        return {**fields, "gflops": gflops, "ceiling_name": unit, "share_of_ceiling": gflops / ceiling}
    found = standings(heed_report)[m.case, m.dtype, m.kv or m.dtype, m.temperature, outcome.kernel]
    # Its time may be of more rounds than these, where the case was a peer of another.
    rates = {name: found[name] * found["ours_ms"] / outcome.ours_ms
             for name in ("gflops", "gbps", "share_of_ceiling", "share_of_floor") if name in found}
    return {**fields, "workspace_bytes": found["workspace_bytes"], "ceiling_name": found["ceiling_name"], **rates}


def entries(outcomes, heed_report):
    """Ratios are peer's time / ours: above 1 ours is faster. Who has no time has a reason."""
    found = []
    for outcome in outcomes:
        ours = ours_fields(outcome, heed_report)
        for peer, ms in outcome.peers_ms.items():
            found.append({**ours, "peer": peer, "peer_ms": ms, "ratio": ms / outcome.ours_ms})
        for peer, reason in outcome.reasons.items():
            found.append({**ours, "peer": peer, "peer_ms": None, "ratio": None, "reason": reason})
        if not outcome.peers_ms and not outcome.reasons:
            found.append({**ours, "peer": None, "peer_ms": None, "ratio": None, "reason": outcome.ours_reason or NO_PEER})
    return found


def short(kernel):
    return kernel.removeprefix("attention_").replace("alibi_bias_mask_softcap", "all").replace("alibi_bias_gqa_mask_softcap", "gqa_all")


def table_line(outcome, heed_report):
    ours = ours_fields(outcome, heed_report)
    name = " ".join(filter(None, [ours["case"], ours["temperature"]]))
    types = ours["dtype"] + (f"/{ours['kv_dtype']}" if ours["kv_dtype"] != ours["dtype"] else "")
    line = f"{name:22} {types:7} {short(ours['kernel']):40}"
    if outcome.ours_ms is None:
        return f"{line} FAILED: {outcome.ours_reason}"
    rate = f"{ours['gbps']:7.1f} GB/s   " if "gbps" in ours else f"{ours['gflops']:7.1f} GFLOP/s"
    line += f" {outcome.ours_ms:10.4f} {rate} {100 * ours['share_of_ceiling']:6.1f}% {ours['ceiling_name']:10}"
    if outcome.peers_ms:
        best = min(outcome.peers_ms, key=outcome.peers_ms.get)
        line += f" {best:16} {outcome.peers_ms[best]:10.4f} {outcome.peers_ms[best] / outcome.ours_ms:6.2f}x"
    return line


def print_table(outcomes, heed_report):
    print(f"\n{'case':22} {'type':7} {'kernel':40} {'ours, ms':>10} {'rate':>15} {'share of ceiling':18} {'best peer':16} {'ms':>10}"
          f" {'ratio':>7}")
    for outcome in outcomes:
        print(table_line(outcome, heed_report))
    reasons = {}
    for outcome in outcomes:
        for peer, reason in outcome.reasons.items():
            reasons.setdefault((peer, reason), []).append(outcome.measurement.title())
    for (peer, reason), titles in reasons.items():
        print(f"no {peer}: {reason}\n    {', '.join(titles)}")


def lines(found):
    """A JSON list with a line for each entry."""
    return "[\n" + ",\n".join("  " + json.dumps(entry) for entry in found) + "\n]"


def write_list(found, path):
    pathlib.Path(path).write_text(lines(found) + "\n", encoding="utf-8")


def write_results(found, heed_report, machine, path):
    """With the machine, its ceilings and the peers' versions."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    head = {"machine": machine, "ceilings": heed_report["ceilings"], "peers": versions}
    text = json.dumps(head, indent=1)[:-2] + ',\n "results": ' + lines(found) + "\n}\n"
    pathlib.Path(path).write_text(text, encoding="utf-8")
