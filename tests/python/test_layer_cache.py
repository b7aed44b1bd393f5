"""Caches of heed.Layer that are read and loaded, layers without sizes given in advance, and Layer.backward, on NumPy."""

import unittest

import ml_dtypes
import numpy as np

from support import Test, heed

CONFIG = {"dim_in": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "head_dim_v": 12, "causal": True}
SHAPES = {"wq": (48, 48), "wk": (16, 48), "wv": (24, 48), "wo": (48, 72), "bk": (16,)}


def make_weights(dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return {name: (random.standard_normal(shape) * 0.3).astype(dtype) for name, shape in SHAPES.items()}


class Caches(Test):
    def setUp(self):
        self.layer = heed.Layer(make_weights(), **CONFIG)
        self.x = np.random.default_rng(1).standard_normal((3, 20, 48), dtype=np.float32)

    def tokens(self, begin, end):
        return np.ascontiguousarray(self.x[:, begin:end])

    def test_read_and_append(self):
        """What one cache holds makes another go on: one of its kind with the same bits."""
        lens = [9, 4, 0]
        for page_size, other in ((None, None), (None, 4), (4, None), (4, 3)):
            cache = self.layer.make_cache(3, 20, page_size=page_size)
            self.layer(self.tokens(0, 9), cache=cache, q_lens=lens)
            k, v = cache.read()
            self.assertEqual((k.shape, v.shape, k.dtype), ((3, 9, 2, 8), (3, 9, 2, 12), np.float32))
            rows = self.x[:, :9] @ make_weights()["wk"].T + make_weights()["bk"]
            for sequence, kv_len in enumerate(lens):
                self.assertLess(np.abs(k[sequence, :kv_len].reshape(kv_len, 16) - rows[sequence, :kv_len]).max(initial=0), 1e-5)
                self.assertFalse(k[sequence, kv_len:].any() or v[sequence, kv_len:].any())
            again = self.layer.make_cache(3, 20, page_size=other)
            again.append(k, v, lens)
            self.assertEqual(again.kv_lens, lens)
            for a, b in zip((k, v), again.read()):
                self.assert_equal(a, b)
            expected, actual = self.layer(self.tokens(9, 14), cache=cache), self.layer(self.tokens(9, 14), cache=again)
            self.assertLess(np.abs(expected - actual).max(), 1e-5)
            if (page_size is None) == (other is None):  # else another kernel may serve
                self.assert_equal(expected, actual)

    def test_views_and_types(self):
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            layer = heed.Layer(make_weights(dtype), **CONFIG)
            x = self.x.astype(dtype)
            cache, int8 = layer.make_cache(3, 20, page_size=8), layer.make_cache(3, 20, int8=True)
            layer(x, cache=cache)
            k, v = cache.read()
            self.assertEqual(k.dtype, np.dtype(dtype))
            again = layer.make_cache(3, 20)
            again.append(np.ascontiguousarray(k.swapaxes(1, 2)).swapaxes(1, 2), v)
            self.assert_equal(k, again.read()[0])
            int8.append(k, v)
            rounded = int8.read()[0]
            self.assertEqual(rounded.dtype, np.float32)
            wide = k.astype(np.float32)
            self.assertLessEqual((np.abs(rounded - wide) - np.abs(wide).max(-1, keepdims=True) / 254 * 1.01).max(), 1e-6)

    def test_pages_that_prefill_gathers_fit_the_workspace(self):
        """One head of keys, more threads than heads, and a layer's longest keys beyond what is gathered."""
        random = np.random.default_rng(2)
        weights = {name: random.standard_normal(shape, np.float32) * 0.2
                   for name, shape in {"wq": (128, 32), "wk": (32, 32), "wv": (32, 32), "wo": (32, 128)}.items()}
        x = random.standard_normal((1, 3000, 32), dtype=np.float32)
        for longest in 3000, 70000:
            layer = heed.Layer(weights, dim_in=32, num_heads=4, num_kv_heads=1, head_dim=32, causal=True, max_batch=1, max_q_len=3000,
                               max_kv_len=longest, max_threads=3)
            in_pages = layer(x, cache=layer.make_cache(1, 3000, page_size=16))
            self.assertLess(np.abs(layer(x, cache=layer.make_cache(1, 3000)) - in_pages).max(), 1e-4)

    def test_fork_shares_pages_until_appended_to(self):
        cache = self.layer.make_cache(3, 20, page_size=4, num_pages=6)
        self.layer(self.tokens(0, 6), cache=cache, q_lens=[6, 0, 0])
        k, v = cache.read()
        cache.fork(0, 1)
        new = np.ones((3, 1, 2, 8), np.float32), np.ones((3, 1, 2, 12), np.float32)
        cache.append(*new, [0, 1, 0])
        self.assertEqual(cache.kv_lens, [6, 7, 0])
        self.assert_equal(k[0, :6], cache.read()[0][0, :6])
        self.assert_equal(k[0, :6], cache.read()[0][1, :6])

    def test_refusals(self):
        cache = self.layer.make_cache(3, 8, page_size=4, num_pages=3)
        k, v = np.ones((3, 4, 2, 8), np.float32), np.ones((3, 4, 2, 12), np.float32)
        for kind, sentence, arguments in (
                (heed.InvalidArgument, r"k has the shape \[3, 4, 1, 8\]; it must be", (k[:, :, :1], v)),
                (heed.InvalidArgument, r"v has the shape \[3, 3, 2, 12\]; it must be", (k, v[:, :3])),
                (heed.InvalidArgument, "k_new.dtype is f16", (k.astype(np.float16), v.astype(np.float16))),
                (heed.InvalidArgument, r"new_lens\[1\] is 5; it must be 0..4, the new_len", (k, v, [0, 5, 0])),
                (heed.InvalidArgument, "there are 2 lengths; there must be 3", (k, v, [0, 1])),
                (heed.InvalidArgument, "sequence 0 would have 9 tokens; the cache's capacity is 8", (np.ones((3, 9, 2, 8), np.float32),
                                                                                                    np.ones((3, 9, 2, 12), np.float32))),
                (heed.OutOfMemory, "the cache has 3 of 3 pages free; the new tokens need 6", (
                    np.ones((3, 8, 2, 8), np.float32), np.ones((3, 8, 2, 12), np.float32)))):
            with self.subTest(sentence=sentence):
                self.assert_refused(kind, sentence, cache.append, *arguments)
                self.assertEqual(cache.kv_lens, [0, 0, 0])
        cache.append(k, v)
        self.assertEqual(cache.kv_lens, [4, 4, 4])

    def test_past(self):
        """Returned and accepted, as decoders do; the bits of a cache."""
        cache, past, first = self.layer.make_cache(3, 20), None, 0
        for count in (7, 1, 5):
            x = self.tokens(first, first + count)
            y, past = self.layer(x, past=past, return_past=True)
            first += count
            self.assertEqual(past[0].shape, (3, first, 2, 8))
            expected = self.layer(x, cache=cache)
            self.assertLess(np.abs(y - expected).max(), 1e-5)
            self.assert_equal(cache.read()[1], past[1])
        self.assert_refused(heed.InvalidArgument, "the cache must be None", self.layer, x, past=past, cache=cache)


class Sizes(Test):
    def test_grows(self):
        """No max_batch and lengths: the bits of a layer that has them."""
        weights, random = make_weights(), np.random.default_rng(2)
        layer = heed.Layer(weights, **CONFIG)
        fixed = heed.Layer(weights, **CONFIG, max_batch=9, max_q_len=300, max_kv_len=300)
        for batch, length in ((1, 1), (2, 17), (9, 5), (1, 300), (3, 129)):
            x = random.standard_normal((batch, length, 48), dtype=np.float32)
            self.assert_equal(fixed(x), layer(x))
        packed = random.standard_normal((260, 48), dtype=np.float32)
        self.assert_equal(fixed(packed, cu_seqlens=[0, 250, 260]), heed.Layer(weights, **CONFIG)(packed, cu_seqlens=[0, 250, 260]))
        grown = heed.Layer(weights, **CONFIG)
        cache, same = grown.make_cache(9, 280), fixed.make_cache(9, 280)
        x = random.standard_normal((9, 270, 48), dtype=np.float32)
        self.assert_equal(fixed(x, cache=same), grown(x, cache=cache))
        self.assert_equal(fixed(x[:, :1].copy(), cache=same), grown(x[:, :1].copy(), cache=cache))
        self.assert_refused(heed.InvalidArgument, "batch is 10; it must be 0..9", fixed, np.zeros((10, 1, 48), np.float32))

    def test_cross_attention(self):
        weights, random = make_weights(), np.random.default_rng(3)
        config = {**CONFIG, "cross": True, "causal": False}
        layer, fixed = heed.Layer(weights, **config), heed.Layer(weights, **config, max_batch=3, max_q_len=2, max_kv_len=400)
        x, context = random.standard_normal((3, 2, 48), dtype=np.float32), random.standard_normal((3, 400, 48), dtype=np.float32)
        self.assert_equal(fixed(x, context), layer(x, context))
        layer = heed.Layer(weights, **config)
        cache, same = layer.make_cache(3, 400), fixed.make_cache(3, 400)
        layer.prepare(cache, context, [400, 7, 0])
        fixed.prepare(same, context, [400, 7, 0])
        self.assert_equal(fixed(x, cache=same), layer(x, cache=cache))
        self.assertEqual(cache.read()[0].shape, (3, 400, 2, 8))


class Backward(Test):
    def test_finite_differences(self):
        weights, random = make_weights(), np.random.default_rng(4)
        x, bias = random.standard_normal((2, 5, 48), dtype=np.float32), random.standard_normal((1, 6, 5, 5), dtype=np.float32)
        layer, dy = heed.Layer(weights, **CONFIG), random.standard_normal((2, 5, 48), dtype=np.float32)
        found = layer.backward(dy, x, bias=bias, q_lens=[5, 3])
        self.assertEqual(found.keys(), {"x", "bias", *weights})

        def loss(x, bias, weights):
            return (heed.Layer(weights, **CONFIG)(x, bias=bias, q_lens=[5, 3]).astype(np.float64) * dy).sum()

        given = {"x": x, "bias": bias, **weights}
        for name, array in given.items():
            self.assertEqual((found[name].shape, found[name].dtype), (array.shape, array.dtype))
            step = random.standard_normal(array.shape, dtype=np.float32)
            moved = [{**given, name: array + sign * 2.0**-8 * step} for sign in (1, -1)]
            values = [loss(one["x"], one["bias"], {key: one[key] for key in weights}) for one in moved]
            slope = (values[0] - values[1]) / 2.0**-7
            expected = (found[name].astype(np.float64) * step).sum()
            self.assertLess(abs(slope - expected), 5e-3 * max(abs(expected), np.abs(found[name]).max(), 1), name)

    def test_wanted(self):
        layer = heed.Layer(make_weights(), **CONFIG)
        x = np.ones((1, 3, 48), np.float32)
        every, some = layer.backward(x, x), layer.backward(x, x, wanted=["wk", "x"])
        self.assertEqual(some.keys(), {"wk", "x"})
        for name, array in some.items():
            self.assert_equal(every[name], array)
        self.assert_refused(heed.InvalidArgument, "wanted has 'wqkv'; it must be one of x, wq", layer.backward, x, x, wanted=["wqkv"])
        fixed = heed.Layer(make_weights(), **CONFIG, max_batch=1, max_q_len=3, max_kv_len=3)
        self.assert_refused(heed.InvalidArgument, "does not keep its weights", fixed.backward, x, x)


if __name__ == "__main__":
    unittest.main()
