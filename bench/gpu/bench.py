"""Times Heed and PyTorch's backends on the same data, and what the device can do at most."""
import contextlib
import ctypes
import math
import random
import statistics

import cases
import data
import heed_api
import peers
from driver import Timer

MIN_MS = 5.0  # of one timing: short calls are repeated
ROUNDS = 8


def start(driver):
    """A stream, PyTorch on it or what replaces it, and a timer."""
    stream = driver.make_stream()
    module, reason = peers.find_torch()
    return stream, peers.Torch(module, stream) if module else peers.NoTorch(driver, reason), Timer(driver, stream)


def in_order(chosen):
    """So that a run that is cut short has seen a bit of all: every seventh one, from each start."""
    chosen = list(chosen)
    return [case for first in range(7) for case in chosen[first::7]]


def run_cases(phase, chosen, measured, left, report):
    """Measures until `left()` seconds are 0. `measured` gives the faults of a case, "" for none."""
    for case in chosen:
        if left() <= 0:
            report.no_time(f"{phase}: {case.name} {case.dtype}")
            continue
        for fault in filter(None, measured(case)):
            report.fail(f"{phase}: {case.name} {case.dtype}: {fault}")


def sizes_of(case):
    """Elements of each tensor."""
    return {**case.elements(), "mask": case.length**2 if case.mask else 0}


class Inputs:
    """Buffers that serve every case of a type; those with a tile are filled, once."""

    def __init__(self, chosen, sizes_of, dtype, tiles, driver, allocate):
        mine = [sizes_of(case) for case in chosen if case.dtype == dtype]
        self.tiles, self.buffers = tiles, {}
        for name in mine[0]:
            elements = max(sizes[name] for sizes in mine)
            size = elements * (1 if name == "mask" else heed_api.ELEMENT_BYTES[dtype])
            self.buffers[name] = data.Buffer(*allocate(size))
            if name in tiles:
                driver.upload(self.buffers[name].address, tiles[name].bytes_of(elements))


class Ours(heed_api.Call):
    """Heed on a case."""

    def __init__(self, heed, case, buffers, driver, stream):
        super().__init__(heed, case.problem(heed), driver, stream)
        args = self.args
        for name, elements in case.elements().items():
            setattr(args, name, heed_api.Tensor(buffers[name].address, elements, heed_api.DTYPES[case.dtype]))
        if case.mask:
            args.mask = heed_api.Tensor(buffers["mask"].address, case.length**2, heed_api.U8)
        if case.lengths:
            starts = [first for first, _ in case.sequences()] + [case.tokens]
            self._starts = (ctypes.c_int32 * len(starts))(*starts)
            args.cu_seqlens_q = args.cu_seqlens_kv = ctypes.addressof(self._starts)


def fault_of(case, ours, inputs, driver, stream):
    """ "" when a row, drawn by the case's name, is right; runs the case on an output of NaN."""
    size = heed_api.ELEMENT_BYTES[case.dtype]
    out = inputs.buffers["out"].address
    driver.fill(out, 0xff, case.elements()["out"] * size)
    ours()
    driver.synchronize(stream)
    draw = random.Random(case.name)
    sequence = max(case.sequences(), key=lambda s: s[1]) if draw.random() < 0.5 else draw.choice(case.sequences())
    query, head = draw.randrange(sequence[1] // 2, sequence[1]), draw.randrange(case.num_heads)
    first = ((sequence[0] + query) * case.num_heads + head) * case.head_dim_v
    got = data.decode(driver.download(out + first * size, case.head_dim_v * size), case.dtype)
    return data.first_fault(f"row {query} of head {head}", got, *data.exact_row(case, inputs.tiles, sequence, query, head))


def time_all(calls, timer, rounds, min_ms, left):
    """{name: [ms of each round]} of {name: (call, context)}: in turns, each round beginning with another one."""
    names, repeats, times = list(calls), {}, {}
    for name, (call, context) in calls.items():
        with context():
            timer.time(call, 2)
            repeats[name] = max(1, min(200, math.ceil(min_ms / max(timer.time(call), 1e-3))))
        times[name] = []
    for n in range(rounds):
        if n >= 3 and left() <= 0:
            break
        for name in names[n % len(names):] + names[:n % len(names)]:
            call, context = calls[name]
            with context():
                times[name].append(timer.time(call, repeats[name]))
    return times


def time_case(calls, timer, tiny, left):
    return time_all(calls, timer, 2 if tiny else ROUNDS, 0 if tiny else MIN_MS, left)


def ceilings(driver, torch, timer, stream, tiny):
    """Bandwidth of a copy (read and written bytes) and TFLOP/s of a matrix product; and what could not be measured."""
    result, missing = {}, []
    if driver.has("cuMemcpyDtoDAsync_v2"):
        size = 1 << (20 if tiny else 30)
        source, to = driver.allocate(size), driver.allocate(size)
        driver.fill(source, 0x5a, size)
        calls = {"copy": (lambda: driver.copy(to, source, size, stream), contextlib.nullcontext)}
        best = min(time_all(calls, timer, 3 if tiny else 10, 0, lambda: 1)["copy"])
        result["copy_gbps"] = 2 * size / best * 1e-6
        driver.free(source)
        driver.free(to)
    else:
        missing.append(("ceiling: copy", "this driver has no cuMemcpyDtoDAsync_v2"))
    if isinstance(torch, peers.NoTorch):
        missing.append(("ceiling: matrix product; all peers", torch.reason))
        return result, missing
    result["matmul_tflops"] = {}
    for dtype in ("f16", "bf16"):
        call, flops = torch.matmul(dtype)
        best = min(time_all({"matmul": (call, contextlib.nullcontext)}, timer, 10, 20, lambda: 1)["matmul"])
        result["matmul_tflops"][dtype] = flops / best * 1e-9
    return result, missing


def measure(case, ours, inputs, torch, timer, ceiling, options, left):
    """Entries of the results for a case, one per peer; faults; and peers that did not run."""
    calls, differences, skipped, faults = {"ours": (ours, contextlib.nullcontext)}, {}, [], []
    if not isinstance(torch, peers.NoTorch):
        call = torch.attention(case, inputs.buffers)
        for backend in peers.BACKENDS:
            reason = call if isinstance(call, str) else torch.why_not(backend, call)
            if reason:
                skipped.append({"case": case.name, "dtype": case.dtype, "peer": backend, "reason": reason})
                continue
            error, size = torch.difference(backend, call, case, inputs.buffers)
            differences[backend] = error
            if not error <= 8 * data.UNITS[case.dtype] * size:
                faults.append(f"differs from {backend} by {error:g}")
            calls[backend] = (call, lambda backend=backend: torch.only(backend))
    times = time_case(calls, timer, options.tiny, left)
    best = min(times["ours"])
    tflops = case.flops() / best * 1e-9
    entry = {"case": case.name, "dtype": case.dtype, "kernel": ours.kernel, "ours_ms": best,
             "ours_ms_median": statistics.median(times["ours"]), "rounds": len(times["ours"]), "tflops": tflops,
             "share_of_ceiling": tflops / ceiling if ceiling else None}
    entries = []
    for peer in list(calls)[1:] or [None]:
        theirs = times.get(peer, [None])
        entries.append({**entry, "peer": peer, "peer_ms": min(theirs), "ratio": min(theirs) / best if peer else None,
                        "peer_ms_median": statistics.median(theirs) if peer else None,
                        "difference": differences.get(peer)})
    return entries, faults, skipped


def run(driver, heed, options, left, report):
    """Fills the report, until `left()` seconds are 0."""
    stream, torch, timer = start(driver)
    report.facts["torch"] = torch.version
    with torch.on_stream():
        report.ceilings, missing = ceilings(driver, torch, timer, stream, options.tiny)
        for what, why in missing:
            report.not_there(what, why)
        chosen = list(cases.all_cases(options.tiny))
        inputs = {}
        for dtype in sorted({case.dtype for case in chosen}):
            tiles = {**data.make_tiles("qkv", dtype, options.tiny), "mask": data.make_mask(options.tiny)}
            inputs[dtype] = Inputs(chosen, sizes_of, dtype, tiles, driver, torch.allocate)

        def measured(case):
            mine = inputs[case.dtype]
            ours = Ours(heed, case, mine.buffers, driver, stream)
            fault = fault_of(case, ours, mine, driver, stream)
            ceiling = report.ceilings.get("matmul_tflops", {}).get(case.dtype)
            entries, faults, skipped = measure(case, ours, mine, torch, timer, ceiling, options, left)
            ours.destroy()
            report.add(report.results, entries, skipped)
            return [fault, *faults]
        run_cases("bench", in_order(chosen), measured, left, report)
