"""Outcomes as a list of entries, one for each peer of a measurement; as a table; as files."""
import importlib.metadata
import json
import pathlib

import goals

PACKAGES = ("torch", "onnxruntime", "openvino", "numpy")


def has_amx(heed_report):
    return any("AMX" in unit for unit in heed_report["ceilings"]["gflops"])


def standings(heed_report):
    """heed_bench's results by what tells measurements apart."""
    return {(r["case"], r["dtype"], r["kv_dtype"], r["temperature"], r["kernel"]): r for r in heed_report["results"]}


def of_work(measurement, work, ours_ms, ceilings):
    """Rate and shares of FLOPs, exponentials and bytes against the fastest unit that the machine has for the type."""
    flops, exponentials, moved = work
    unit = ceilings["best_unit"][measurement.dtype]
    peak, exp_rate = ceilings["gflops"][unit], ceilings["exp_gelems"][unit]
    gflops = flops / ours_ms * 1e-6
    return {"gflops": gflops, "ceiling_name": unit, "share_of_ceiling": gflops / peak,
            "share_of_floor": (flops / peak + exponentials / exp_rate) * 1e-6 / ours_ms,
            "bound_by_memory": moved / ceilings["dram_gbps"] > flops / peak}


def ours_fields(outcome, heed_report):
    m = outcome.measurement
    fields = {"case": m.case, "dtype": m.dtype, "kv_dtype": m.kv or m.dtype, "temperature": m.temperature,
              "kernel": outcome.kernel, "quiet_rounds": outcome.quiet_rounds, "ours_ms": outcome.ours_ms}
    if outcome.ours_ms is None:
        return {**fields, "share_of_ceiling": None}
    if outcome.work:
        return {**fields, **of_work(m, outcome.work, outcome.ours_ms, heed_report["ceilings"])}
    found = standings(heed_report)[m.case, m.dtype, m.kv or m.dtype, m.temperature, outcome.kernel]
    # Its time may be of more rounds than these, where the case was a peer of another.
    rates = {name: found[name] * found["ours_ms"] / outcome.ours_ms
             for name in ("gflops", "gbps", "share_of_ceiling", "share_of_floor") if name in found}
    return {**fields, "workspace_bytes": found["workspace_bytes"], "ceiling_name": found["ceiling_name"], **rates}


def best_peer(outcome):
    """The peer with the smallest median ratio, or None. Our own references are none."""
    peers = [name for name, ratios in outcome.ratios.items() if ratios and name not in goals.REFERENCES]
    return min(peers, key=lambda name: goals.quartiles(outcome.ratios[name])[1], default=None)


def misses(outcome, heed_report):
    """Why the goal is missed, in words; None where there is no goal."""
    goal = goals.goal_of(outcome.measurement, has_amx(heed_report))
    if goal is None:
        return None
    if outcome.ours_ms is None:
        return ["failed"]
    ours, best = ours_fields(outcome, heed_report), best_peer(outcome)
    standing = goals.Standing(
        ratios=None if best is None else goals.quartiles(outcome.ratios[best]),
        share_of_floor=ours["share_of_floor"], share_of_peak=ours["share_of_ceiling"],
        bound_by_memory=ours.get("bound_by_memory", False),
        own={name: goals.quartiles(outcome.ratios[name]) for name in goals.REFERENCES if outcome.ratios.get(name)},
        failed=tuple(outcome.failures) + tuple(name for name in outcome.reasons if "torch" in name))
    return goals.misses(goal, standing)


def unmet(outcome, heed_report):
    """Whether it makes the command fail."""
    return outcome.ours_ms is None or bool(misses(outcome, heed_report))


def entries(outcomes, heed_report):
    """A ratio is the median of the rounds' ratios peer's time / ours: above 1 ours is faster. Who has no time has a reason."""
    found = []
    for outcome in outcomes:
        goal = goals.goal_of(outcome.measurement, has_amx(heed_report))
        ours = {**ours_fields(outcome, heed_report), "isa": outcome.measurement.isa, "goal": goal and goal.ratio,
                "missed": misses(outcome, heed_report)}
        for peer, ms in outcome.peers_ms.items():
            low, median, high = goals.quartiles(outcome.ratios[peer])
            found.append({**ours, "peer": peer, "peer_ms": ms, "ratio": median, "ratio_p25": low, "ratio_p75": high})
        for peer, reason in {**outcome.reasons, **outcome.failures}.items():
            found.append({**ours, "peer": peer, "peer_ms": None, "ratio": None, "reason": reason})
        if outcome.ours_reason:
            found.append({**ours, "peer": None, "peer_ms": None, "ratio": None, "reason": outcome.ours_reason})
    return found


def short(kernel):
    return kernel.removeprefix("attention_").replace("alibi_bias_mask_softcap", "all").replace("alibi_bias_gqa_mask_softcap", "gqa_all")


def verdict(outcome, heed_report):
    """The goal and whether it is met; in how many rounds other processes disturbed, where there were any."""
    missed, goal = misses(outcome, heed_report), goals.goal_of(outcome.measurement, has_amx(heed_report))
    if goal is None:
        return ""
    share = "" if goal.share is None else f", {100 * goal.share:.0f}% of peak"
    share += "" if goal.floor is None else f", {goal.floor} of the floor"
    disturbed = outcome.rounds - outcome.quiet_rounds
    note = f" ({disturbed} of {outcome.rounds} rounds disturbed)" if disturbed else ""
    return f"  goal {goal.ratio:.1f}{share}{' MISSED: ' + ', '.join(missed) if missed else ' met'}{note}"


def table_line(outcome, heed_report):
    ours = ours_fields(outcome, heed_report)
    m = outcome.measurement
    name = " ".join(filter(None, [m.case, m.temperature, m.isa]))
    types = ours["dtype"] + (f"/{ours['kv_dtype']}" if ours["kv_dtype"] != ours["dtype"] else "")
    line = f"{name:28} {types:7} {short(ours['kernel']):40}"
    if outcome.ours_ms is None:
        return f"{line} FAILED: {outcome.ours_reason}"
    rate = f"{ours['gbps']:7.1f} GB/s   " if "gbps" in ours else f"{ours['gflops']:7.1f} GFLOP/s"
    line += f" {outcome.ours_ms:10.4f} {rate} {100 * ours['share_of_ceiling']:6.1f}% {ours['ceiling_name']:10}"
    line += f" {100 * ours['share_of_floor']:5.1f}%"
    best = best_peer(outcome)
    for peer in [name for name in outcome.ratios if name == best or name in goals.REFERENCES]:
        low, median, high = goals.quartiles(outcome.ratios[peer])
        line += f" {peer:16} {outcome.peers_ms[peer]:10.4f} {median:6.2f}x {low:5.2f}-{high:.2f}"
    return line + verdict(outcome, heed_report)


def print_reasons(outcomes, word, reasons_of):
    found = {}
    for outcome in outcomes:
        for peer, reason in reasons_of(outcome).items():
            found.setdefault((peer, reason), []).append(outcome.measurement.title())
    for (peer, reason), titles in found.items():
        print(f"{word} {peer}: {reason}\n    {', '.join(titles)}")


def print_table(outcomes, heed_report):
    print(f"\n{'case':28} {'type':7} {'kernel':40} {'ours, ms':>10} {'rate':>15} {'share of ceiling':18} {'floor':6} {'best peer':16}"
          f" {'ms':>10} {'ratio':>7} {'quartiles':10}")
    for outcome in outcomes:
        print(table_line(outcome, heed_report))
    print_reasons(outcomes, "no", lambda outcome: outcome.reasons)
    print_reasons(outcomes, "FAILED", lambda outcome: outcome.failures)
    with_goals = [found for found in (misses(outcome, heed_report) for outcome in outcomes) if found is not None]
    print(f"goals: {sum(not found for found in with_goals)} of {len(with_goals)} met")


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
