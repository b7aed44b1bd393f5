"""Masks of every type that users have them in, by either convention, on NumPy."""

import unittest

import ml_dtypes
import numpy as np

from support import Shape, Test, heed, make_qkv

SHAPE = Shape(batch=2, q_len=5, kv_len=19)
TYPES = np.bool_, np.uint8, np.int8, np.int32, np.int64, np.float32, np.float64, np.float16, ml_dtypes.bfloat16


class Masks(Test):
    def setUp(self):
        self.keep = np.random.default_rng(1).random((2, 1, 5, 19)) < 0.6
        self.q, self.k, self.v = make_qkv(SHAPE)
        self.expected = heed.attention(self.q, self.k, self.v, mask=self.keep)

    def attend(self, mask, **options):
        return heed.attention(self.q, self.k, self.v, mask=mask, **options)

    def test_attention(self):
        for dtype in TYPES:
            with self.subTest(dtype=dtype):
                ones, hides = self.keep.astype(dtype), (~self.keep).astype(dtype)
                if np.dtype(dtype).kind in "biu":
                    self.assert_equal(self.expected, self.attend(ones))
                    self.assert_equal(self.expected, self.attend(hides, mask_true_hides=True))
                self.assert_equal(self.expected, self.attend(ones, mask_means="attend"))
                self.assert_equal(self.expected, self.attend(hides, mask_means="hide"))
                self.assert_equal(self.expected, self.attend(ones, mask_means="attend", mask_true_hides=True))
        self.assert_equal(self.expected, self.attend(3 * self.keep.astype(np.int64)))

    def test_added(self):
        added = np.where(self.keep, np.float32(0.25), -np.float32(np.inf))
        bias = np.random.default_rng(2).standard_normal((5, 19), dtype=np.float32)
        self.assert_equal(self.attend(None, bias=added), self.attend(added, mask_means="add"))
        self.assert_equal(self.attend(None, bias=added + bias), self.attend(added, mask_means="add", bias=bias))

    def test_refusals(self):
        floats = self.keep.astype(np.float32)
        for sentence, mask, options in (
                ("mask has elements of float32, which may mean several things", floats, {}),
                ("mask has elements other than 0 and 1, and mask_means is 'attend'", floats - 1, {"mask_means": "attend"}),
                ("mask_means is 'keep'; it must be 'attend', 'hide' or 'add'", floats, {"mask_means": "keep"}),
                ("mask has elements of bool, and mask_means is 'add'; they must be float32", self.keep, {"mask_means": "add"})):
            self.assert_refused(heed.InvalidArgument, sentence, self.attend, mask, **options)

    def test_layer(self):
        random = np.random.default_rng(3)
        weights = {name: random.standard_normal((32, 32), dtype=np.float32) for name in ("wq", "wk", "wv", "wo")}
        x = random.standard_normal((2, 6, 32), dtype=np.float32)
        keep, tokens = random.random((2, 1, 6, 6)) < 0.6, np.arange(6) < [[6], [4]]
        plain = heed.Layer(weights, dim_in=32, num_heads=4, num_kv_heads=4)
        hiding = heed.Layer(weights, dim_in=32, num_heads=4, num_kv_heads=4, mask_true_hides=True)
        expected = plain(x, mask=keep, key_padding=tokens)
        for dtype in TYPES:
            with self.subTest(dtype=dtype):
                for layer in (plain, hiding):
                    self.assert_equal(expected, layer(x, mask=keep.astype(dtype), key_padding=tokens.astype(dtype), mask_means="attend"))
                    self.assert_equal(expected, layer(x, mask=(~keep).astype(dtype), key_padding=(~tokens).astype(dtype),
                                                      mask_means="hide"))
        self.assert_equal(expected, hiding(x, mask=~keep, key_padding=~tokens))

        def added(mask):
            return np.where(mask, np.float32(0), -np.float32(np.inf))

        visible = keep & tokens[:, None, None]
        self.assert_equal(plain(x, bias=added(visible)), plain(x, mask=added(keep), key_padding=added(tokens), mask_means="add"))
        self.assert_refused(heed.InvalidArgument, "key_padding has elements of float64, which may mean several things", plain, x,
                            key_padding=tokens.astype(float))


if __name__ == "__main__":
    unittest.main()
