"""heed.KVCache against attention over the tokens that it must hold."""

import itertools
import unittest

import numpy as np

from support import NUMPY_TYPES, Shape, Test, heed, make_qkv, oracle, typed

BATCH, HEADS, DIM, CAPACITY = 3, 2, 32, 40
FORMS = None, 1, 8, 16, 64  # page sizes


def tokens(count, seed, dtype="f32"):
    random = np.random.default_rng(seed)
    return [typed(random.standard_normal((BATCH, count, HEADS, DIM), dtype=np.float32), dtype) for _ in "kv"]


class Model:
    """A list of tokens per sequence."""

    def __init__(self):
        self.k, self.v = ([[] for _ in range(BATCH)] for _ in "kv")

    def append(self, k, v, lens):
        for b, length in enumerate(lens):
            self.k[b] += list(k[b, :length])
            self.v[b] += list(v[b, :length])

    def lens(self):
        return [len(rows) for rows in self.k]

    def dense(self, rows):
        array = np.zeros((BATCH, CAPACITY, HEADS, DIM), np.float32)
        for b, row in enumerate(rows):
            if row:
                array[b, :len(row)] = np.stack(row)
        return array


class Cache(Test):
    def make(self, page_size, dtype="float32", **options):
        return heed.KVCache(BATCH, CAPACITY, HEADS, DIM, dtype=dtype, page_size=page_size, **options)

    def assert_holds(self, cache, model, seed=9):
        """Attention of two queries over the cache is what it is over the model's tokens."""
        self.assertEqual(cache.kv_lens.tolist(), model.lens())
        q = np.random.default_rng(seed).standard_normal((BATCH, 2, 4, DIM), dtype=np.float32)
        expected = oracle.attend({"causal": True, "position": "bottom_right"}, q, model.dense(model.k), model.dense(model.v),
                                 kv_lens=model.lens())
        self.assert_near(expected, *cache.attention(q, causal=True, return_lse=True))

    def test_append(self):
        for page_size in FORMS:
            with self.subTest(page_size=page_size):
                cache, model = self.make(page_size), Model()
                for step, lens in enumerate(([5, 0, 17], [1, 1, 1], None, [0, 0, 0], [3, 20, 2])):
                    k, v = tokens(20 if step == 4 else 17, step)
                    cache.append(k, v, lens)
                    model.append(k, v, [17] * BATCH if lens is None else lens)
                    self.assert_holds(cache, model)

    def test_types(self):
        for (name, dtype), page_size in itertools.product((("float16", "f16"), ("bfloat16", "bf16")), (None, 8)):
            cache = self.make(page_size, name)
            k, v = tokens(20, 1, dtype)
            cache.append(k, v)
            self.assertEqual(cache.k.dtype, NUMPY_TYPES[dtype])
            q = typed(make_qkv(Shape(batch=BATCH))[0], dtype)
            expected = heed.attention(q, k, v, position="bottom_right", causal=True)
            found = cache.attention(q, causal=True)
            reference = oracle.attend({"dtype": dtype, "causal": True, "position": "bottom_right"}, q, k, v)
            self.assert_near(reference, expected)
            self.assert_near(reference, found)

    def test_int8(self):
        for page_size in (None, 8):
            cache = self.make(page_size, "int8")
            k, v = tokens(20, 1)
            cache.append(k, v)
            q = make_qkv(Shape(batch=BATCH))[0]
            scales = [np.abs(x).max(-1) / np.float32(127) for x in (k, v)]
            codes = [np.rint(x / scale[..., None]) for x, scale in zip((k, v), scales)]
            rounded = [code * scale[..., None] for code, scale in zip(codes, scales)]
            expected = oracle.attend({"kv_dtype": "i8", "position": "bottom_right"}, q, *rounded)
            self.assert_near(expected, *cache.attention(q, return_lse=True))

    def test_truncate_and_reset(self):
        for page_size in FORMS:
            with self.subTest(page_size=page_size):
                cache, model = self.make(page_size), Model()
                for round_ in range(5):  # more tokens than the capacity: pages come back
                    k, v = tokens(30, round_)
                    cache.append(k, v)
                    model.append(k, v, [30] * BATCH)
                    for b, length in enumerate((0, 9, 10)):
                        cache.truncate(b, length)
                        del model.k[b][length:], model.v[b][length:]
                    self.assert_holds(cache, model)
                cache.reset()
                self.assert_holds(cache, Model())

    def test_fork(self):
        for page_size in FORMS:
            with self.subTest(page_size=page_size):
                cache, model = self.make(page_size), Model()
                k, v = tokens(11, 1)
                cache.append(k, v, [11, 4, 0])
                model.append(k, v, [11, 4, 0])
                cache.fork(0, 1)
                cache.fork(0, 0)
                cache.fork(1, 2)
                for rows in (model.k, model.v):
                    rows[1], rows[2] = list(rows[0]), list(rows[0])
                self.assert_holds(cache, model)
                for step in range(3):  # each sequence goes its own way
                    k, v = tokens(3, 2 + step)
                    cache.append(k, v, [3, 1, 2])
                    model.append(k, v, [3, 1, 2])
                    self.assert_holds(cache, model)

    def test_shared_pages_are_shared(self):
        cache = self.make(8, num_pages=4)
        cache.append(*tokens(16, 1), [16, 0, 0])
        cache.fork(0, 1)
        cache.fork(0, 2)
        self.assertEqual(cache.page_table[:, :2].tolist(), [cache.page_table[0, :2].tolist()] * 3)
        cache.append(*tokens(1, 2), [1, 1, 0])
        self.assertEqual(sorted(cache.page_table[:, 2]), [-1, *sorted({0, 1, 2, 3} - set(cache.page_table[0, :2]))])

    def test_pages_run_out(self):
        cache, model = self.make(8, num_pages=5), Model()
        k, v = tokens(16, 1)
        cache.append(k, v, [16, 9, 0])
        model.append(k, v, [16, 9, 0])
        table = cache.page_table.copy()
        with self.assertRaisesRegex(heed.OutOfMemory, "all 5 pages of the cache are in use"):
            cache.append(k, v, [1, 0, 1])
        self.assert_equal(table, cache.page_table)
        self.assert_holds(cache, model)
        cache.append(k, v, [8, 7, 0])
        model.append(k, v, [8, 7, 0])
        self.assert_holds(cache, model)

    def test_memory_is_head_by_head(self):
        cache = self.make(None)
        self.assertEqual(cache.k.shape, (BATCH, CAPACITY, HEADS, DIM))
        self.assertTrue(cache.k.swapaxes(1, 2).flags.c_contiguous)


class Refusals(Test):
    def test_making(self):
        for sentence, options in (("batch is 0; it must be", {"batch": 0}), ("capacity is 2.5; it must be", {"capacity": 2.5}),
                                  ("page_size is 0; it must be", {"page_size": 0}),
                                  ("num_pages is 3 without page_size", {"num_pages": 3}),
                                  ("dtype is 'int4'; it must be", {"dtype": "int4"})):
            sizes = {"batch": 2, "capacity": 8, "num_kv_heads": 1, "head_dim": 4, **options}
            self.assert_refused(heed.InvalidArgument, sentence, heed.KVCache, **sizes)

    def test_appending(self):
        for page_size in (None, 8):
            cache = heed.KVCache(BATCH, CAPACITY, HEADS, DIM, page_size=page_size)
            k, v = tokens(16, 1)
            cache.append(k, v)
            table = None if page_size is None else cache.page_table.copy()
            refused = heed.InvalidArgument
            self.assert_refused(refused, r"kv_lens would be \[57, 16, 16\]; they may be 40 at most", cache.append,
                                *tokens(41, 1), [41, 0, 0])
            self.assert_refused(refused, "new_lens is .* it must be 3 numbers, each 0..16", cache.append, k, v, [17, 0, 0])
            self.assert_refused(refused, "new_lens is .* it must be 3 numbers", cache.append, k, v, [1, 0])
            self.assert_refused(refused, r"k_new has the shape \[3, 16, 1, 32\]; it must be", cache.append, k[:, :, :1], v)
            self.assert_refused(refused, r"v_new has the shape \[3, 16, 2, 16\]; it must be", cache.append, k, v[..., :16])
            self.assert_refused(refused, "v_new has elements of float16", cache.append, k, v.astype(np.float16))
            self.assert_refused(refused, "k_new is a str", cache.append, "k", v)
            self.assert_refused(refused, "k_new has elements of float16; they must be float32", cache.append, k.astype(np.float16), v.astype(np.float16))
            self.assertEqual(cache.kv_lens.tolist(), [16] * 3)
            if page_size is not None:
                self.assert_equal(table, cache.page_table)

    def test_sequences(self):
        cache = heed.KVCache(BATCH, CAPACITY, HEADS, DIM)
        self.assert_refused(heed.InvalidArgument, r"sequence is 3; it must be 0\.\.2", cache.truncate, 3, 0)
        self.assert_refused(heed.InvalidArgument, r"kv_len is 1; it must be 0\.\.0", cache.truncate, 0, 1)
        self.assert_refused(heed.InvalidArgument, r"to is -1; it must be 0\.\.2", cache.fork, 0, -1)


if __name__ == "__main__":
    unittest.main()
