"""One problem's data and the arrays that a storage keeps it in."""

import ml_dtypes
import numpy as np

from case_file import from_layout, to_layout

GARBAGE_PAGE = 2**31 - 1
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def encode(values, dtype):
    """As the files store a type: bf16 as its bits."""
    encoded = values.astype(TYPES[dtype])
    return encoded.view(np.uint16) if dtype == "bf16" else encoded


def decode(array, dtype):
    """Values or bits of a type as float32."""
    return array.view(TYPES[dtype]).astype(np.float32)


class StoredCase:
    """Makes data of a shape, whose q_len and kv_len are the longest, and stores it.

    problem, files: what the case file holds, bf16 as its bits. q, k, v: the values that these mean, [batch, position, head, dim] with
    max_q_len and max_kv_len positions; garbage after each sequence's own. full: the extents of mask and bias.
    """

    def __init__(self, shape, problem, q_lens=None, kv_lens=None, page_size=8, seed=1):
        self.shape, self.dtype = shape, problem.get("dtype", "f32")
        self.int8 = problem.get("kv_dtype") == "i8"
        self.layout = {"q": "bshd", "k": "bshd", "v": "bshd", "out": "bshd", **problem.get("layout", {})}
        self.q_varlen = problem.get("q_storage") == "varlen"
        self.kv_storage = problem.get("kv_storage", "contiguous")
        self.q_lens = [shape.q_len] * shape.batch if q_lens is None else q_lens
        self.kv_lens = [shape.kv_len] * shape.batch if kv_lens is None else kv_lens
        self.problem, self.files = problem, {}
        self.random = np.random.default_rng(seed)
        pages = -(-shape.kv_len // page_size) + 1
        self.max_kv_len = pages * page_size if self.kv_storage == "paged" else shape.kv_len
        self.full = (shape.batch, shape.num_heads, shape.q_len, self.max_kv_len)
        self.make_queries()
        places = self.place_keys(page_size, pages)
        self.k = self.make_keys("k", shape.head_dim, places)
        self.v = self.make_keys("v", shape.head_dim_v, places)

    def normal(self, *extents):
        return self.random.standard_normal(extents, dtype=np.float32)

    def store(self, name, array, varlen, without=""):
        """A stored array from one with the axes b, s, h, d, but those of `without`; varlen arrays have no b."""
        axes = "".join(axis for axis in "bshd" if axis not in without)
        order = [axes.index(axis) for axis in self.layout[name[0]] if axis not in without]
        array = np.ascontiguousarray(array.transpose(order))
        return array.squeeze(order.index(0)) if varlen else array

    def make_queries(self):
        shape = self.shape
        q = encode(self.normal(shape.batch, shape.q_len, shape.num_heads, shape.head_dim), self.dtype)
        self.q = decode(q, self.dtype)
        if not self.q_varlen:
            self.files["q"] = to_layout(q, self.layout["q"])
            return
        self.files["cu_seqlens_q"] = np.cumsum([0, *self.q_lens]).astype(np.int32)
        tokens = np.concatenate([q[b, :length] for b, length in enumerate(self.q_lens)])
        self.files["q"] = self.store("q", tokens[None], True)

    def place_keys(self, page_size, pages):
        """The first two extents of k, and which of these slots the keys of each sequence have."""
        batch, kv_lens = self.shape.batch, self.kv_lens
        if self.kv_storage == "varlen":
            sums = np.cumsum([0, *kv_lens])
            self.files["cu_seqlens_kv"] = sums.astype(np.int32)
            return (1, sums[-1]), [(0, np.arange(sums[b], sums[b + 1])) for b in range(batch)]
        if self.kv_storage == "contiguous":
            if min(kv_lens, default=self.max_kv_len) < self.max_kv_len:
                self.files["kv_lens"] = np.array(kv_lens, np.int32)
            return (batch, self.max_kv_len), [(b, np.arange(kv_lens[b])) for b in range(batch)]
        self.files["kv_lens"] = np.array(kv_lens, np.int32)
        ids = self.random.permutation(batch * pages + 3)[:batch * pages].reshape(batch, pages).astype(np.int32)
        table = ids.copy()
        for b in range(batch):
            table[b, -(-kv_lens[b] // page_size):] = GARBAGE_PAGE
        self.files["page_table"] = table
        slots = [np.arange(kv_lens[b]) for b in range(batch)]
        return (batch * pages + 3, page_size), [(ids[b, j // page_size], j % page_size) for b, j in enumerate(slots)]

    def make_keys(self, name, head_dim, places):
        extents, slots = places
        num_kv_heads = self.shape.num_kv_heads
        varlen = self.kv_storage == "varlen"
        rows = self.normal(*extents, num_kv_heads, head_dim)
        unowned = np.ones(extents, bool)  # by any sequence: these hold NaN
        for slot in slots:
            unowned[slot] = False
        if self.int8:
            codes = self.random.integers(-128, 128, rows.shape).astype(np.int8)
            scales = np.abs(rows[..., 0]) / 64
            scales[..., 0].flat[::5] = 0
            scales[unowned] = np.nan
            self.files[name] = self.store(name, codes, varlen)
            self.files[name + "_scale"] = self.store(name, scales, varlen, without="d")
            rows = codes * scales[..., None]
        else:
            stored = encode(rows, self.dtype)
            stored[unowned] = encode(np.full(1, np.nan, np.float32), self.dtype)[0]
            self.files[name] = self.store(name, stored, varlen)
            rows = decode(stored, self.dtype)
        values = np.full((self.shape.batch, self.max_kv_len, num_kv_heads, head_dim), np.nan, np.float32)
        for b, slot in enumerate(slots):
            values[b, :self.kv_lens[b]] = rows[slot]
        return values

    def as_the_oracle(self, out, lse):
        """Results in its form, 0 and -inf after each sequence's own queries."""
        layout = self.layout["out"]
        if not self.q_varlen:
            return decode(from_layout(out, layout), self.dtype), lse
        out = decode(out.transpose([layout.replace("b", "").index(axis) for axis in "shd"]), self.dtype)
        return self.to_dense(out, lse)

    def to_dense(self, out, lse):
        """Ragged results [tokens, heads, ...] and [heads, tokens] as the oracle has them."""
        shape = self.shape
        dense_out = np.zeros((shape.batch, shape.q_len, *out.shape[1:]), np.float32)
        dense_lse = np.full((shape.batch, shape.num_heads, shape.q_len), -np.inf, np.float32)
        begin = 0
        for b, length in enumerate(self.q_lens):
            dense_out[b, :length] = out[begin:begin + length]
            dense_lse[b, :, :length] = lse[:, begin:begin + length]
            begin += length
        return dense_out, dense_lse
