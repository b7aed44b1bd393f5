"""Times Heed's gradients and those of PyTorch's backends (flash: FlashAttention-2) on the same data."""
import contextlib
import ctypes
import math
import operator
import random
import statistics

import bench
import cases
import data
import heed_api
import peers

FLOPS = 2.5  # of the forward's


def all_cases(tiny):
    """The grid of prefill up to 8k tokens."""
    for dtype in ("f16", "bf16"):
        for case in cases.grid(dtype, tiny):
            if case.length <= 8192 and (not tiny or dtype == "f16" or case.causal):
                yield case


def elements_of(case):
    """The elements of each tensor: a gradient has as many as its tensor."""
    sizes = case.elements()
    return {**sizes, "dout": sizes["out"], **{"d" + name: sizes[name] for name in "qkv"}}


class Ours(heed_api.Call):
    """Heed's gradients on a case, after a forward call."""

    def __init__(self, heed, case, buffers, driver, stream):
        problem = case.problem(heed)
        problem.want_lse = True
        super().__init__(heed, problem, driver, stream)
        self._gradients = heed_api.Gradients(struct_size=ctypes.sizeof(heed_api.Gradients))
        for name, elements in elements_of(case).items():
            tensor = heed_api.Tensor(buffers[name].address, elements, heed_api.DTYPES[case.dtype])
            setattr(self.args if name in ("q", "k", "v", "out") else self._gradients, name, tensor)
        rows = case.tokens * case.num_heads
        self.args.lse = heed_api.Tensor(self.allocate(4 * rows), rows, heed_api.DTYPES["f32"])
        self.execute()
        self.take_workspace(heed.heed_attention_backward_workspace_bytes(self.plan))

    def __call__(self):
        self.heed.check(self.heed.heed_attention_backward(self.plan, ctypes.byref(self.args), ctypes.byref(self._gradients)))


def exact_dq(case, tiles, query, head):
    """A row of dq of the first sequence in doubles, and how far a right result may be from it."""
    scale, kv_head = 1 / math.sqrt(case.head_dim), head // (case.num_heads // case.num_kv_heads)

    def row(name, token, heads, of_head, width):
        return tiles[name].row((token * heads + of_head) * width, width)
    q = row("q", query, case.num_heads, head, case.head_dim)
    dout = row("dout", query, case.num_heads, head, case.head_dim_v)
    logits, grads, keys = [], [], []
    for key in case.visible(query) or range(case.length):
        keys.append(row("k", key, case.num_kv_heads, kv_head, case.head_dim))
        v = row("v", key, case.num_kv_heads, kv_head, case.head_dim_v)
        logits.append(scale * sum(map(operator.mul, q, keys[-1])))
        grads.append(sum(map(operator.mul, dout, v)))
    weights = data.softmax(logits)
    delta = sum(map(operator.mul, weights, grads))
    factors = [scale * weight * (grad - delta) for weight, grad in zip(weights, grads)]
    # out is rounded to the type, and with it delta.
    rounding = math.sqrt(sum(map(operator.mul, dout, dout)))
    sizes = [abs(factor) + scale * weight * rounding for factor, weight in zip(factors, weights)]
    dq, _ = data.weighted_sums(factors, keys, case.head_dim)
    _, size = data.weighted_sums(sizes, keys, case.head_dim)
    return dq, data.bounds(case.dtype, dq, size, 1e-5)


def fault_of(case, ours, inputs, driver, stream):
    """ "" when a row of dq, drawn by the case's name, is right; runs the case on outputs of NaN."""
    size = heed_api.ELEMENT_BYTES[case.dtype]
    for name in ("dq", "dk", "dv"):
        driver.fill(inputs.buffers[name].address, 0xff, elements_of(case)[name] * size)
    ours()
    driver.synchronize(stream)
    draw = random.Random(case.name)
    query, head = draw.randrange(case.length // 2, case.length), draw.randrange(case.num_heads)
    first = (query * case.num_heads + head) * case.head_dim
    got = data.decode(driver.download(inputs.buffers["dq"].address + first * size, case.head_dim * size), case.dtype)
    return data.first_fault(f"dq of row {query} of head {head}", got, *exact_dq(case, inputs.tiles, query, head))


def measure(case, ours, inputs, torch, timer, options, left):
    """Entries of the results for a case, one per peer; faults; and peers that did not run."""
    calls, skipped, faults = {"ours": (ours, contextlib.nullcontext)}, [], []
    for backend in peers.BACKENDS if not isinstance(torch, peers.NoTorch) else ():
        call = torch.gradients(backend, case, inputs.buffers)
        if isinstance(call, str):
            skipped.append({"case": case.name, "dtype": case.dtype, "peer": backend, "reason": call})
            continue
        for name, error, size in torch.gradient_differences(call, case, inputs.buffers):
            if not error <= 16 * data.UNITS[case.dtype] * size:
                faults.append(f"{name} differs from {backend} by {error:g} of {size:g}")
        calls["backward of " + backend] = (call, contextlib.nullcontext)
    times = bench.time_case(calls, timer, options.tiny, left)
    best = min(times["ours"])
    entry = {"case": case.name, "dtype": case.dtype, "ours_ms": best, "ours_ms_median": statistics.median(times["ours"]),
             "rounds": len(times["ours"]), "tflops": FLOPS * case.flops() / best * 1e-9, "share_of_ceiling": None}
    entries = []
    for peer in list(calls)[1:] or [None]:
        theirs = min(times[peer]) if peer else None
        entries.append({**entry, "peer": peer, "peer_ms": theirs, "ratio": theirs / best if peer else None})
    return entries, faults, skipped


def run(driver, heed, options, left, report):
    """Fills the report, until `left()` seconds are 0."""
    stream, torch, timer = bench.start(driver)
    with torch.on_stream():
        chosen = list(all_cases(options.tiny))
        inputs = {}
        for dtype in ("f16", "bf16"):
            tiles = data.make_tiles(("q", "k", "v", "dout"), dtype, options.tiny)
            inputs[dtype] = bench.Inputs(chosen, elements_of, dtype, tiles, driver, torch.allocate)

        def measured(case):
            mine = inputs[case.dtype]
            ours = Ours(heed, case, mine.buffers, driver, stream)
            fault = fault_of(case, ours, mine, driver, stream)
            entries, faults, skipped = measure(case, ours, mine, torch, timer, options, left)
            ours.destroy()
            report.add(report.gradients, entries, skipped)
            return [fault, *faults]
        bench.run_cases("gradients", bench.in_order(chosen), measured, left, report)
