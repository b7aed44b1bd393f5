"""heed.rope, merge_states, attention_probs and linear against plain formulas in float64."""

import unittest

import numpy as np

from support import Shape, Test, heed, make_qkv, oracle, typed

UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # half of the distance from 1 to the next number
SHAPE = Shape(batch=2, q_len=5, kv_len=19)


def wide(array):
    return np.asarray(array).astype(np.float64)


class OpsTest(Test):
    def assert_within(self, expected, found, bound):
        self.assertEqual(found.shape, expected.shape)
        self.assertLessEqual((np.abs(wide(found) - expected) - bound).max(initial=0), 0)


class Rope(OpsTest):
    def tables(self, rows, pairs):
        angles = np.outer(np.arange(rows), 100.0 ** (-np.arange(pairs) / pairs))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rotated(self, x, cos, sin, interleaved):
        """cos, sin: [batch, len, pairs]."""
        x, pairs = wide(x), cos.shape[-1]
        first = slice(0, 2 * pairs, 2) if interleaved else slice(pairs)
        second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
        result, c, s = x.copy(), wide(cos)[:, :, None], wide(sin)[:, :, None]
        result[..., first] = x[..., first] * c - x[..., second] * s
        result[..., second] = x[..., second] * c + x[..., first] * s
        return result

    def test_positions(self):
        random = np.random.default_rng(1)
        cos, sin = self.tables(40, 12)
        positions = random.integers(0, 40, (2, 7))
        for dtype, interleaved in ((d, i) for d in UNITS for i in (False, True)):
            x = typed(random.standard_normal((2, 7, 3, 32)), dtype)
            found = heed.rope(x, cos, sin, positions, interleaved=interleaved)
            self.assertEqual(found.dtype, x.dtype)
            expected = self.rotated(x, cos[positions], sin[positions], interleaved)
            self.assert_within(expected, found, UNITS[dtype] * np.abs(expected) + 4 * UNITS["f32"] * np.abs(wide(x)).max())
            self.assert_equal(x[..., 24:], found[..., 24:])

    def test_tables_of_tokens_strides_and_in_place(self):
        random = np.random.default_rng(2)
        x = random.standard_normal((2, 3, 7, 16), dtype=np.float32).swapaxes(1, 2)
        cos, sin = (table.reshape(2, 7, 8) for table in self.tables(14, 8))
        expected = heed.rope(np.ascontiguousarray(x), cos, sin)
        self.assert_within(self.rotated(x, cos, sin, False), expected, 8 * UNITS["f32"] * np.abs(x).max())
        self.assert_equal(expected, heed.rope(x, cos, sin))
        self.assertIs(heed.rope(x, cos, sin, out=x), x)
        self.assert_equal(expected, x)

    def test_refusals(self):
        x, (cos, sin) = np.zeros((2, 7, 3, 16), np.float32), self.tables(40, 8)
        places = np.zeros((2, 7), np.int32)
        kind = heed.InvalidArgument
        self.assert_refused(kind, r"cos has the shape \[40, 8\]; it must have 3 dimensions, \[batch, len", heed.rope, x, cos, sin)
        self.assert_refused(kind, r"sin has the shape \[39, 8\]; it must be cos's", heed.rope, x, cos, sin[1:], places)
        self.assert_refused(kind, r"positions has the shape \[7\]; it must be \[batch, len\]", heed.rope, x, cos, sin, places[0])
        self.assert_refused(kind, r"positions\[1\]\[3\] is 40; it must be 0 or more, below max_position, 40", heed.rope, x, cos,
                            sin, [[0] * 7, [0, 0, 0, 40, 0, 0, 0]])
        self.assert_refused(kind, "rotary_dim is 80; it must be", heed.rope, x, *self.tables(40, 40), places)
        self.assert_refused(kind, r"out has the shape \[1, 7, 3, 16\]; it must be x's", heed.rope, x, cos, sin, places, out=x[:1])
        longer = np.zeros((2, 8, 3, 16), np.float32)
        self.assert_refused(kind, "overlap", heed.rope, longer[:, :7], cos, sin, places, out=longer[:, 1:])


class MergeStates(OpsTest):
    def test_parts_of_the_keys(self):
        q, k, v = make_qkv(SHAPE)
        sink = np.linspace(-1, 1, 4, dtype=np.float32)
        parts = [heed.attention(q, k[:, begin:end], v[:, begin:end], return_lse=True)
                 for begin, end in ((0, 3), (3, 3), (3, 19))]
        outs, lses = zip(*parts)
        for given in (None, sink):
            arrays = {} if given is None else {"sink": given}
            expected = oracle.attend({}, q, k, v, **arrays)
            out, lse = heed.merge_states(outs, lses, given, return_lse=True)
            # Each part may be as far from the truth as the whole, and a merge rounds once more.
            self.assert_within(expected.out, out, 3 * expected.out_bound)
            self.assert_within(expected.lse, lse, 3 * expected.lse_bound)
        self.assert_equal(outs[0], heed.merge_states(outs[:2], lses[:2]))
        into = np.empty_like(outs[0])
        self.assertIs(heed.merge_states(outs, lses, out=into), into)
        self.assert_equal(heed.merge_states(outs, lses), into)

    def test_refusals(self):
        out, lse = np.zeros((2, 5, 4, 8), np.float32), np.zeros((2, 4, 5), np.float32)
        for sentence, arguments in (
                ("outs is empty", ([], [])),
                ("there are 2 outs and 1 lses", ([out, out], [lse])),
                (r"outs\[1\] has the shape \[1, 5, 4, 8\]; it must be out's", ([out, out[:1]], [lse, lse])),
                (r"outs\[1\] has elements of float16; they must be float32", ([out, out.astype(np.float16)], [lse, lse])),
                (r"lses\[1\] has the shape \[2, 5, 4\]; it must be \[batch, num_heads, q_len\]",
                 ([out, out], [lse, lse.swapaxes(1, 2)])),
                (r"outs\[1\] has the strides .* they must be those of outs\[0\]",
                 ([out, np.zeros((2, 4, 5, 8), np.float32).swapaxes(1, 2)], [lse, lse])),
                (r"sink has the shape \[3\]; it must be \[num_heads\]", ([out], [lse], np.zeros(3, np.float32)))):
            with self.subTest(sentence=sentence):
                self.assert_refused(heed.InvalidArgument, sentence, heed.merge_states, *arguments)


class Probs(OpsTest):
    def test_modes(self):
        q, k, _ = make_qkv(SHAPE)
        mask = np.random.default_rng(3).random((5, 19)) < 0.7
        bias = np.linspace(-2, 2, 19, dtype=np.float32)
        options = {"softcap": 3.0, "mask": mask, "bias": bias}
        scores = np.einsum("bihd,bjhd->bhij", wide(q), wide(k).repeat(2, 2)) / np.sqrt(q.shape[-1])
        capped = 3 * np.tanh(scores / 3)
        masked = np.where(mask, capped + bias, -np.inf)
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        expected = {"scores": scores, "softcap": capped, "masked": masked, "softmax": weights / weights.sum(-1, keepdims=True)}
        bound = 64 * UNITS["f32"] * np.abs(scores).max()
        for mode, values in expected.items():
            found = heed.attention_probs(q, k, mode=mode, **options)
            self.assert_equal(np.isneginf(values), np.isneginf(found))
            self.assert_within(np.where(mask, values, 0), np.where(mask, found, 0), bound)
        self.assert_equal(heed.attention_probs(q, k, **options), found)
        self.assertTrue((found[:, :, ~mask] == 0).all())

    def test_types_lengths_and_out(self):
        q, k, _ = (typed(x, "f16") for x in make_qkv(SHAPE))
        probs = heed.attention_probs(q, k, kv_lens=[3, 19], causal=True, position="bottom_right")
        self.assertEqual(probs.dtype, np.float16)
        rounded = heed.attention_probs(q, k, kv_lens=[3, 19], causal=True, position="bottom_right", dtype="float32")
        self.assert_equal(rounded.astype(np.float16), probs)
        self.assertTrue((rounded[0, ..., 3:] == 0).all())
        self.assertTrue((rounded[0, :, :2] == 0).all())  # rows before all keys
        out = np.empty((2, 4, 5, 19), np.float32)
        self.assertIs(heed.attention_probs(q, k, kv_lens=[3, 19], causal=True, position="bottom_right", out=out), out)
        self.assert_equal(rounded, out)

    def test_int8_keys_and_pages(self):
        random = np.random.default_rng(4)
        q, _, _ = make_qkv(SHAPE)
        k, v = (random.standard_normal((2, 19, 2, 32), dtype=np.float32) for _ in "kv")
        cache = heed.KVCache(2, 19, 2, 32, dtype="int8", page_size=8)
        cache.append(k, v)
        found = heed.attention_probs(q, cache.k, k_scale=cache.k_scale, page_table=cache.page_table, kv_lens=cache.kv_lens)
        codes = wide(cache.k) * wide(cache.k_scale)[..., None]
        keys = codes[cache.page_table].reshape(2, 24, 2, 32)[:, :19]
        expected = heed.attention_probs(q, np.ascontiguousarray(keys, np.float32))
        self.assert_within(wide(expected), found[..., :19], 2.0**-18)
        self.assertEqual(found.shape, (2, 4, 5, 24))

    def test_refusals(self):
        q, k, _ = make_qkv(SHAPE)
        kind = heed.InvalidArgument
        self.assert_refused(kind, "mode is 'probs'; it must be one of 'scores'", heed.attention_probs, q, k, mode="probs")
        self.assert_refused(kind, "dtype is 'float16'; it must be 'float32' or None", heed.attention_probs, q, k, dtype="float16")
        self.assert_refused(kind, r"probs has the shape \[2, 4, 5, 18\]; it must be \[batch, num_heads, q_len, kv_len\]",
                            heed.attention_probs, q, k, out=np.empty((2, 4, 5, 18), np.float32))


class Linear(OpsTest):
    def test_formula(self):
        random = np.random.default_rng(5)
        for dtype, unit in UNITS.items():
            x, weight, bias = (typed(random.standard_normal(shape), dtype) for shape in ((3, 7, 40), (24, 40), (24,)))
            for given in (None, bias):
                weights = heed.LinearWeights(weight, given)
                self.assertEqual((weights.dim_in, weights.dim_out), (40, 24))
                expected = wide(x) @ wide(weight).T + (0 if given is None else wide(given))
                found = heed.linear(x, weights)
                self.assertEqual(found.dtype, x.dtype)
                bound = unit * np.abs(expected) + 41 * UNITS["f32"] * (np.abs(wide(x)) @ np.abs(wide(weight)).T + 4)
                self.assert_within(expected, found, bound)
                self.assert_equal(found[1], heed.linear(x[1], weights))

    def test_strides_and_out(self):
        random = np.random.default_rng(6)
        x, weight = (random.standard_normal(shape, dtype=np.float32) for shape in ((7, 3, 50), (24, 48)))
        weights = heed.LinearWeights(weight[:, :40])
        view, out = x[..., :40].swapaxes(0, 1), np.empty((3, 7, 24), np.float32)
        self.assertIs(heed.linear(view, weights, out=out), out)
        self.assert_equal(heed.linear(np.ascontiguousarray(view), heed.LinearWeights(weight[:, :40].copy())), out)

    def test_refusals(self):
        x, weight = np.zeros((2, 8), np.float32), np.zeros((4, 8), np.float32)
        weights, kind = heed.LinearWeights(weight), heed.InvalidArgument
        self.assert_refused(kind, "the last axis of weight has the stride 4; it must be 1", heed.LinearWeights, weight.T.copy().T)
        self.assert_refused(kind, r"bias has the shape \[8\]; it must be \[dim_out\]", heed.LinearWeights, weight, x[0])
        self.assert_refused(kind, r"x has the shape \[2, 7\]; it must be \[.., dim_in\], which is \[2, 8\]", heed.linear, x[:, :7],
                            weights)
        self.assert_refused(kind, "x has elements of float16; they must be float32", heed.linear, x.astype(np.float16), weights)
        self.assert_refused(kind, r"out has the shape \[2, 8\]; it must be x's", heed.linear, x, weights, out=x.copy())
        self.assert_refused(kind, "stream is given for arrays on the CPU", heed.linear, x, weights, stream=1)


if __name__ == "__main__":
    unittest.main()
