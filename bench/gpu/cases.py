"""What is measured: attention problems by name, their arithmetic, their heed_problem."""
import dataclasses

import heed_api


@dataclasses.dataclass(frozen=True)
class Case:
    """Queries and keys are equally long; packed [batch, len, heads, head_dim]."""
    name: str
    dtype: str
    batch: int
    num_heads: int
    num_kv_heads: int
    length: int  # varlen: of the longest sequence
    head_dim: int
    head_dim_v: int
    causal: bool
    window_left: int = -1
    mask: bool = False  # [1, 1, len, len]
    lengths: tuple = ()  # varlen: of the sequences

    @property
    def tokens(self):
        return sum(self.lengths) if self.lengths else self.batch * self.length

    def elements(self):
        """The elements of q, k, v and out."""
        return {"q": self.tokens * self.num_heads * self.head_dim, "k": self.tokens * self.num_kv_heads * self.head_dim,
                "v": self.tokens * self.num_kv_heads * self.head_dim_v,
                "out": self.tokens * self.num_heads * self.head_dim_v}

    def sequences(self):
        """(first token, length) of each."""
        if not self.lengths:
            return [(b * self.length, self.length) for b in range(self.batch)]
        return [(sum(self.lengths[:b]), length) for b, length in enumerate(self.lengths)]

    def visible(self, query):
        """The keys that a query of a sequence sees, the mask apart."""
        if not self.causal:
            return None
        return range(0 if self.window_left < 0 else max(0, query - self.window_left), query + 1)

    def flops(self):
        """4 * heads * q_len * kv_len * head_dim, half of it for causal; of a window only what is in it."""
        pairs = 0
        for _, length in self.sequences():
            if self.window_left >= 0:
                pairs += sum(len(self.visible(query)) for query in range(length))
            else:
                pairs += length * length / (2 if self.causal else 1)
        return 2 * (self.head_dim + self.head_dim_v) * self.num_heads * pairs

    def problem(self, heed):
        p = heed.problem()
        p.dtype = p.kv_dtype = heed_api.DTYPES[self.dtype]
        p.batch, p.num_heads, p.num_kv_heads = self.batch, self.num_heads, self.num_kv_heads
        p.head_dim, p.head_dim_v = self.head_dim, self.head_dim_v
        p.max_q_len = p.max_kv_len = self.length
        p.causal, p.window_left = self.causal, self.window_left
        if self.lengths:
            p.q_storage = p.kv_storage = heed_api.VARLEN
            p.total_q = p.total_kv = self.tokens
        if self.mask:
            p.has_mask = True
            p.mask_shape[0] = p.mask_shape[1] = 1
        return p


def grid(dtype, tiny):
    """32 query heads on 32 or 8 of keys and values, 2k to 16k tokens, causal and full, head_dim 128 and 64."""
    heads, groups = (4, (4, 1)) if tiny else (32, (32, 8))
    for num_kv_heads in groups:
        for head_dim in (128, 64):
            for length in (40, 72) if tiny else (2048, 4096, 8192, 16384):
                for causal in (True, False):
                    name = f"{'mha' if num_kv_heads == heads else 'gqa'}_{length}_d{head_dim}_{'causal' if causal else 'full'}"
                    yield Case(name, dtype, 1, heads, num_kv_heads, length, head_dim, head_dim, causal)


def extras(dtype, tiny):
    """Other head dims, a ragged batch, a window, a mask."""
    heads, length, window = (2, 40, 16) if tiny else (32, 4096, 1024)
    for head_dim, head_dim_v in ((80, 80), (96, 96), (192, 128), (256, 256), (72, 72)):
        name = f"d{head_dim}" + ("" if head_dim == head_dim_v else f"x{head_dim_v}")
        yield Case(name + "_causal", dtype, 1, heads, heads, length, head_dim, head_dim_v, True)
    lengths = (40, 1, 24) if tiny else (4096, 3000, 2048, 1500, 1024, 512, 77, 1)
    yield Case("varlen_causal", dtype, len(lengths), heads, heads, max(lengths), 128, 128, True, lengths=lengths)
    yield Case(f"window_{window}", dtype, 1, heads, heads, length if tiny else 16384, 128, 128, True, window_left=window)
    yield Case("mask_full", dtype, 1, heads, heads, length, 128, 128, False, mask=True)


def all_cases(tiny=False):
    """Tiny: for the emulated device, where a whole run takes seconds."""
    for dtype in ("f16", "bf16"):
        chosen = [*grid(dtype, tiny), *extras(dtype, tiny)]
        # Tiny: every kind of case once, in one type or the other.
        yield from chosen[("f16", "bf16").index(dtype)::2] if tiny else chosen
