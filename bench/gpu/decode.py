"""Times decoding, PyTorch's backends and a kernel that only reads, in turns."""
import contextlib
import math
import operator
import random
import statistics

import bench
import data
import heed_api
import peers
from decode_cases import CACHE_BYTES, DecodeCall, DecodeCase
from read_kernel import ReadKernel

EXACT_KV_LEN = 8192  # longest caches of which a row is computed here


def all_cases(tiny):
    """Batch 16 and 64, 8 heads of keys and one, 8k to 32k tokens, contiguous and in pages; one sequence of 128k."""
    heads, lengths, batches = (8, (96,), (2,)) if tiny else (32, (8192, 16384, 32768), (16, 64))
    types = (("f16", "f16"), ("bf16", "bf16"), ("f16", "i8"))
    for kv_len in lengths:
        for batch in batches:
            for num_kv_heads in (heads // 4, 1):
                for page_size in (0, 16, 64):
                    for dtype, kv_dtype in types:
                        yield DecodeCase(dtype, kv_dtype, batch, heads, num_kv_heads, kv_len, page_size)
    for page_size in (0, 64):
        for dtype, kv_dtype in types:
            yield DecodeCase(dtype, kv_dtype, 1, heads, heads // 4, 160 if tiny else 131072, page_size)


class Memory:
    """q, k, v and out of every case, in buffers as large as the largest needs, filled with repeated tiles."""

    def __init__(self, chosen, driver, torch, tiny):
        self._driver = driver
        codes = random.Random(9)
        length = data.TINY_TILE if tiny else data.TILE
        floats = {name: data.make_floats(seed, tiny) for seed, name in enumerate("qkv")}
        self.tiles = {dtype: {name: data.Tile.of_floats(floats[name], dtype) for name in "qkv"} for dtype in ("f16", "bf16")}
        numbers = [codes.randint(-127, 127) for _ in range(length)]
        code = data.Tile(numbers, bytes(number & 255 for number in numbers), length)
        scale = data.Tile.of_floats([abs(x) / 127 + 2**-8 for x in floats["k"]], "f32")
        self.tiles["i8"] = {"k": code, "v": code, "scale": scale}
        self._largest = {"q": 0, "k": 0, "scale": 0}
        for case in chosen:
            sizes = {"q": case.batch * case.num_heads * case.head_dim * 2,
                     "k": case.cache_elements() * CACHE_BYTES[case.kv_dtype],
                     "scale": 4 * case.cache_elements() // case.head_dim if case.kv_dtype == "i8" else 0}
            self._largest = {name: max(size, self._largest[name]) for name, size in sizes.items()}
        of = {"q": "q", "out": "q", "k": "k", "v": "k", "k_scale": "scale", "v_scale": "scale"}
        self.buffers = {name: data.Buffer(*torch.allocate(self._largest[kind])) for name, kind in of.items()}
        self._held = None

    @property
    def cache_bytes(self):
        """The bytes of the buffer of k; that of v has as many."""
        return self._largest["k"]

    def addresses(self):
        return {name: buffer.address for name, buffer in self.buffers.items()}

    def hold(self, case):
        """Fills the buffers for cases of this one's types."""
        if self._held == (case.dtype, case.kv_dtype):
            return
        self._held = case.dtype, case.kv_dtype
        cache = self.tiles[case.kv_dtype]
        for name, tile, size in (("q", self.tiles[case.dtype]["q"], "q"), ("k", cache["k"], "k"), ("v", cache["v"], "k")):
            self._fill(self.buffers[name].address, tile, self._largest[size])
        if case.kv_dtype == "i8":
            for name in ("k_scale", "v_scale"):
                self._fill(self.buffers[name].address, cache["scale"], self._largest["scale"])

    def _fill(self, address, tile, size):
        """A tile, then what is there already, twice as much each time."""
        raw = tile.bytes_of(tile.length)
        done = min(len(raw), size)
        self._driver.upload(address, raw[:done])
        while done < size:
            count = min(done, size - done)
            self._driver.copy_now(address + done, address, count)
            done += count


def block_of(case, sequence, token):
    """The number of a token's block of the cache: a page, or a sequence's whole part."""
    return token // case.block_len * case.batch + sequence if case.page_size else sequence


def place_of(case, sequence, kv_head, token):
    """The first element of a row of k or v, over head_dim."""
    return (block_of(case, sequence, token) * case.num_kv_heads + kv_head) * case.block_len + token % case.block_len


def scale_place_of(case, sequence, kv_head, token):
    """The scale of a row of k or v; scales are packed token by token, [batch or page][token][kv head]."""
    return (block_of(case, sequence, token) * case.block_len + token % case.block_len) * case.num_kv_heads + kv_head


def exact_row(case, tiles, sequence, head):
    """Row of `out` in doubles, and how far a right result may be from it."""
    q = tiles[case.dtype]["q"].row((sequence * case.num_heads + head) * case.head_dim, case.head_dim)
    cache, kv_head = tiles[case.kv_dtype], head // (case.num_heads // case.num_kv_heads)
    places = [place_of(case, sequence, kv_head, token) for token in range(case.kv_len)]
    scales = [1.0] * case.kv_len
    if case.kv_dtype == "i8":
        scales = [cache["scale"].row(scale_place_of(case, sequence, kv_head, token), 1)[0] for token in range(case.kv_len)]
    logits = [scale * sum(map(operator.mul, q, cache["k"].row(place * case.head_dim, case.head_dim))) /
              math.sqrt(case.head_dim) for place, scale in zip(places, scales)]
    values = (cache["v"].row(place * case.head_dim, case.head_dim) for place in places)
    out, size = data.weighted_sums(map(operator.mul, data.softmax(logits), scales), values, case.head_dim)
    return out, data.bounds(case.dtype, out, size, 1e-6)


def fault_of(case, call, memory, driver, stream):
    """ "" when a row, drawn by the case's name, is right; runs the case on an output of NaN."""
    out, size = memory.buffers["out"].address, 2 * case.head_dim
    driver.fill(out, 0xff, case.batch * case.num_heads * size)
    call()
    driver.synchronize(stream)
    draw = random.Random(case.name)
    sequence, head = draw.randrange(case.batch), draw.randrange(case.num_heads)
    got = data.decode(driver.download(out + (sequence * case.num_heads + head) * size, size), case.dtype)
    if case.kv_len > EXACT_KV_LEN:
        return "" if all(map(math.isfinite, got)) else f"sequence {sequence}, head {head} is not finite"
    return data.first_fault(f"sequence {sequence}, head {head}", got, *exact_row(case, memory.tiles, sequence, head))


def measure(case, call, memory, torch, reader, timer, options, left):
    """The entry of the results, and peers that did not run."""
    read = reader.bytes_of(min(case.minimum_bytes(), memory.cache_bytes))
    calls = {"ours": (call, contextlib.nullcontext),
             "read": (lambda: reader.read(memory.buffers["k"].address, read), contextlib.nullcontext)}
    skipped = []
    theirs = torch.decoding(case, memory.buffers)
    for backend in peers.BACKENDS:
        reason = theirs if isinstance(theirs, str) else torch.why_not(backend, theirs)
        if reason:
            skipped.append({"case": case.name, "dtype": case.dtype, "peer": backend, "reason": reason})
        else:
            calls[backend] = (theirs, lambda backend=backend: torch.only(backend))
    times = bench.time_case(calls, timer, options.tiny, left)
    best = {name: min(values) for name, values in times.items()}
    backends = {name: ms for name, ms in best.items() if name in peers.BACKENDS}
    fastest = min(backends, key=backends.get, default=None)
    gbps = case.minimum_bytes() / best["ours"] * 1e-6
    read_gbps = read / best["read"] * 1e-6
    return {"case": case.name, "dtype": case.dtype, "kernel": call.kernel, "ours_ms": best["ours"],
            "ours_ms_median": statistics.median(times["ours"]), "gbps": gbps, "read_gbps": read_gbps,
            "share_of_read": gbps / read_gbps, "peer": fastest, "peers_ms": backends,
            "ratio": backends[fastest] / best["ours"] if fastest else None}, skipped


def row_text(entry):
    share = f"{entry['share_of_read']:6.1%} of {entry['read_gbps']:.0f} GB/s read"
    peer = f"{entry['ratio']:5.2f}x {entry['peer']}" if entry["peer"] else ""
    return f"{entry['case']:48} {entry['ours_ms']:9.3f} ms {entry['gbps']:8.0f} GB/s {share} {peer}"


def run(driver, heed, options, left, report):
    """Fills the report, until `left()` seconds are 0."""
    stream, torch, timer = bench.start(driver)
    reader = ReadKernel(driver, stream, options.tiny)
    with torch.on_stream():
        chosen = []
        for case in all_cases(options.tiny):
            if 2.2 * case.minimum_bytes() < (driver.memory_bytes or math.inf):
                chosen.append(case)
            else:
                report.not_there(f"decode: {case.name}", "the device's memory is too small")
        memory = Memory(chosen, driver, torch, options.tiny)

        def measured(case):
            try:
                call = DecodeCall(heed, case, memory.addresses(), driver, stream)
            except heed_api.HeedError as error:
                report.not_there(f"decode: {case.name}", str(error).splitlines()[0])
                return []
            memory.hold(case)
            fault = fault_of(case, call, memory, driver, stream)
            entry, skipped = measure(case, call, memory, torch, reader, timer, options, left)
            call.destroy()
            report.decode.append(entry)
            report.peers_skipped += skipped
            print(row_text(entry), flush=True)
            return [fault]
        bench.run_cases("decode", bench.in_order(chosen), measured, left, report)
