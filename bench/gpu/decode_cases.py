"""Decoding: one query of each sequence against a cache, contiguous or in pages; a call of Heed on such a case."""
import ctypes
import dataclasses

import heed_api

CACHE_BYTES = {"f16": 2, "bf16": 2, "i8": 1}


@dataclasses.dataclass(frozen=True)
class DecodeCase:
    """K and V head by head, [batch or page][kv head][token][head_dim]; pages of a sequence are apart."""
    dtype: str
    kv_dtype: str
    batch: int
    num_heads: int
    num_kv_heads: int
    kv_len: int
    page_size: int = 0  # 0: contiguous
    head_dim: int = 128

    @property
    def name(self):
        storage = f"page{self.page_size}" if self.page_size else "contiguous"
        return f"decode_b{self.batch}_h{self.num_heads}x{self.num_kv_heads}_kv{self.kv_len}_{storage}_{self.kv_dtype}"

    @property
    def pages(self):
        """The pages of a sequence."""
        return -(-self.kv_len // self.page_size) if self.page_size else 0

    @property
    def blocks(self):
        return self.batch * self.pages if self.page_size else self.batch

    @property
    def block_len(self):
        return self.page_size or self.kv_len

    def cache_elements(self):
        """The elements of k; v has as many."""
        return self.blocks * self.num_kv_heads * self.block_len * self.head_dim

    def minimum_bytes(self):
        """Keys and values once, with the scales of codes."""
        tokens = self.batch * self.kv_len * self.num_kv_heads
        return 2 * tokens * (self.head_dim * CACHE_BYTES[self.kv_dtype] + (4 if self.kv_dtype == "i8" else 0))

    def problem(self, heed):
        p = heed.problem()
        p.dtype = heed_api.DTYPES[self.dtype]
        p.kv_dtype = heed_api.I8 if self.kv_dtype == "i8" else p.dtype
        p.batch, p.num_heads, p.num_kv_heads = self.batch, self.num_heads, self.num_kv_heads
        p.head_dim = p.head_dim_v = self.head_dim
        p.max_q_len, p.max_kv_len, p.has_kv_lens = 1, self.kv_len, True
        row, head = self.head_dim, self.block_len * self.head_dim
        for layout in (p.k_layout, p.v_layout):
            layout.stride[:] = [self.num_kv_heads * head, row, head, 1]
        if self.page_size:
            p.kv_storage = heed_api.PAGED
            p.num_pages, p.page_size, p.max_pages_per_seq = self.blocks, self.page_size, self.pages
        return p


class DecodeCall(heed_api.Call):
    """Heed on a case, its lengths and pages on the device. `tensors`: addresses of q, k, v, out, and of the scales
    k_scale and v_scale of codes."""

    def __init__(self, heed, case, tensors, driver, stream):
        problem = case.problem(heed)
        problem.metadata_on_device = True
        super().__init__(heed, problem, driver, stream)
        args, cache = self.args, case.cache_elements()
        for names, elements, dtype in ((("q", "out"), case.batch * case.num_heads * case.head_dim, problem.dtype),
                                       (("k", "v"), cache, problem.kv_dtype),
                                       (("k_scale", "v_scale"), cache // case.head_dim, heed_api.DTYPES["f32"])):
            for name in names if case.kv_dtype == "i8" or "scale" not in names[0] else ():
                setattr(args, name, heed_api.Tensor(tensors[name], elements, dtype))
        args.kv_lens = self._upload([case.kv_len] * case.batch)
        args.page_table = self._upload([n * case.batch + b for b in range(case.batch) for n in range(case.pages)])

    def _upload(self, numbers):
        address = self.allocate(4 * len(numbers))
        if numbers:
            self._driver.upload(address, bytes((ctypes.c_int32 * len(numbers))(*numbers)))
        return address
