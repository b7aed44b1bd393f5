"""Inputs on the device, and the exact result of a row.

Every tensor repeats a tile of normally distributed values; its length is prime, so that rows differ. One buffer per
tensor and type serves all cases."""
import math
import operator
import random
import struct

TILE = 262139
TINY_TILE = 4093
UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-18}  # half a unit in the last place; of f32 what sums in it keep
WIDEST = 640  # elements that a read past the tile's end may need


class Tile:
    """Element e of a tensor is values[e % length]."""

    def __init__(self, values, raw, length):
        self.length, self._raw = length, raw
        self._values = list(values) + list(values[:WIDEST])

    @classmethod
    def of_floats(cls, floats, dtype):
        length = len(floats)
        if dtype == "f16":
            raw = struct.pack(f"<{length}e", *floats)
            return cls(struct.unpack(f"<{length}e", raw), raw, length)
        wide = bytearray(struct.pack(f"<{length}f", *floats))
        if dtype == "bf16":
            raw = bytearray(2 * length)
            raw[0::2], raw[1::2] = wide[2::4], wide[3::4]
            wide[0::4] = wide[1::4] = bytes(length)
            return cls(struct.unpack(f"<{length}f", wide), bytes(raw), length)
        return cls(struct.unpack(f"<{length}f", wide), bytes(wide), length)

    @classmethod
    def of_bytes(cls, values):
        return cls(values, bytes(values), len(values))

    def row(self, first, count):
        first %= self.length
        return self._values[first:first + count]

    def bytes_of(self, elements):
        size = elements * len(self._raw) // self.length
        return (self._raw * (size // len(self._raw) + 1))[:size]


def make_floats(seed, tiny):
    generator = random.Random(seed)
    return [generator.gauss(0, 1) for _ in range(TINY_TILE if tiny else TILE)]


def make_mask(tiny):
    """Half of the keys may be seen."""
    generator = random.Random(4)
    return Tile.of_bytes([generator.getrandbits(1) for _ in range(TINY_TILE if tiny else TILE)])


def make_tiles(names, dtype, tiny):
    """For each name a tile of a type."""
    return {name: Tile.of_floats(make_floats(seed, tiny), dtype) for seed, name in enumerate(names)}


class Buffer:
    """Memory on the device; `tensor` is PyTorch's, of bytes, when PyTorch allocated it."""

    def __init__(self, address, tensor=None):
        self.address, self.tensor = address, tensor


def softmax(logits):
    """0 without a logit."""
    largest = max(logits, default=0)
    weights = [math.exp(logit - largest) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def weighted_sums(weights, rows, width):
    """The sum of weighted rows, and of their magnitudes."""
    sums, sizes = [0.0] * width, [0.0] * width
    for weight, row in zip(weights, rows):
        sums = [total + weight * x for total, x in zip(sums, row)]
        sizes = [total + abs(weight * x) for total, x in zip(sizes, row)]
    return sums, sizes


def bounds(dtype, exact, sizes, least):
    """How far right results may be: weights and the result are rounded to the type, half a unit each, and as much again
    for sums."""
    return [2 * UNITS[dtype] * (size + abs(x)) + least for x, size in zip(exact, sizes)]


def exact_row(case, tiles, sequence, query, head):
    """Row of `out` in doubles, and how far a right result may be from it, element by element."""
    first_token, length = sequence
    kv_head = head // (case.num_heads // case.num_kv_heads)
    q = tiles["q"].row(((first_token + query) * case.num_heads + head) * case.head_dim, case.head_dim)
    keys = case.visible(query) or range(length)
    if case.mask:
        mask = tiles["mask"]
        keys = [key for key in keys if mask.row(query * case.length + key, 1)[0]]
    logits = []
    for key in keys:
        k = tiles["k"].row(((first_token + key) * case.num_kv_heads + kv_head) * case.head_dim, case.head_dim)
        logits.append(sum(map(operator.mul, q, k)) / math.sqrt(case.head_dim))
    values = (tiles["v"].row(((first_token + key) * case.num_kv_heads + kv_head) * case.head_dim_v, case.head_dim_v) for key in keys)
    out, size = weighted_sums(softmax(logits), values, case.head_dim_v)
    return out, bounds(case.dtype, out, size, 1e-6)


def first_fault(what, got, expected, bounds):
    """ "" where every element is within its bound."""
    for n, (x, y, bound) in enumerate(zip(got, expected, bounds)):
        if not abs(x - y) <= bound:
            return f"{what}, element {n} is {x:g}, expected {y:g} within {bound:g}"
    return ""


def decode(raw, dtype):
    """The values of elements."""
    if dtype == "f16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    if dtype == "bf16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        return struct.unpack(f"<{len(raw) // 2}f", wide)
    return struct.unpack(f"<{len(raw) // 4}f", raw)
