"""heed.attention_backward, linear_backward, dropout_mask and the pooling of heads on NumPy, against formulas in float64."""

import unittest

import numpy as np

from support import Shape, Test, heed, make_qkv, typed

UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SHAPE = Shape(batch=2, q_len=7, kv_len=19)


def wide(array):
    return np.asarray(array).astype(np.float64)


def formula(q, k, v, dout, bias=None, sink=None, causal=False, keep=None, dropout_p=0.0):
    """dq, dk, dv, dbias, dsink of [batch, len, heads, dim] in float64."""
    q, k, v, dout = (wide(x).swapaxes(1, 2) for x in (q, k, v, dout))
    groups, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    many_k, many_v = (np.repeat(x, groups, 1) for x in (k, v))
    logits = scale * q @ many_k.swapaxes(2, 3) + (0 if bias is None else wide(bias))
    if causal:
        logits = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None], logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(wide(sink)[:, None, None] - top))
    weights /= total
    kept = weights if keep is None else weights * keep / (1 - dropout_p)
    dweights = dout @ many_v.swapaxes(2, 3)
    dweights = dweights if keep is None else dweights * keep / (1 - dropout_p)
    row = (weights * dweights).sum(-1, keepdims=True)
    dlogits = weights * (dweights - row)

    def grouped(x):
        return x.reshape(x.shape[0], -1, groups, *x.shape[2:]).sum(2)

    dsink = None if sink is None else -(np.exp(wide(sink)[:, None, None] - top) / total * row).sum((0, 2, 3))
    dbias = None if bias is None else dlogits
    dk, dv = grouped(scale * dlogits.swapaxes(2, 3) @ q), grouped(kept.swapaxes(2, 3) @ dout)
    return [(scale * dlogits @ many_k).swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2), dbias, dsink]


class Attention(Test):
    def check(self, dtype="f32", bias=None, sink=None, keep=None, layout=lambda x: x, **options):
        random = np.random.default_rng(1)
        q, k, v = (layout(typed(x, dtype)) for x in make_qkv(SHAPE))
        given = {name: array for name, array in (("bias", bias), ("sink", sink)) if array is not None}
        out, lse = heed.attention(q, k, v, return_lse=True, **given, **options)
        dout = typed(random.standard_normal(out.shape), dtype)
        found = heed.attention_backward(dout, q, k, v, out, lse, **given, **options)
        same = {name: options[name] for name in ("causal", "dropout_p") if name in options}
        for name, array, expected in zip(found._fields, found, formula(q, k, v, dout, keep=keep, **given, **same)):
            self.assertEqual(array is None, expected is None, name)
            if array is not None:
                self.assertEqual(array.shape, expected.shape)
                self.assertLessEqual(np.abs(wide(array) - expected).max(), 64 * UNITS[dtype] * max(np.abs(expected).max(), 1), name)
        self.assertEqual(found.dq.strides, q.strides)
        return found

    def test_types(self):
        for dtype in UNITS:
            self.check(dtype)
            self.check(dtype, causal=True)

    def test_bias_sink_and_dropout(self):
        random = np.random.default_rng(2)
        bias, sink = random.standard_normal((2, 4, 7, 19), dtype=np.float32), random.standard_normal(4, dtype=np.float32)
        self.check(bias=bias, sink=sink, causal=True)
        keep = heed.dropout_mask((2, 4, 7, 19), 0.25, 11, 3)
        self.assertEqual((keep.dtype, keep.shape), (np.uint8, (2, 4, 7, 19)))
        self.check(keep=keep, dropout_p=0.25, dropout_seed=11, dropout_offset=3)

    def test_layouts(self):
        packed = self.check()
        outside = self.check(layout=lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2))
        for a, b in zip(packed[:3], outside[:3]):
            self.assert_equal(a, b)

    def test_wanted_and_refusals(self):
        q, k, v = make_qkv(SHAPE)
        out, lse = heed.attention(q, k, v, return_lse=True)
        found = heed.attention_backward(out, q, k, v, out, lse, wanted=["v"])
        self.assertEqual([array is None for array in found], [True, True, False, True, True])
        every = heed.attention_backward(out, q, k, v, out, lse)
        self.assert_equal(every.dv, found.dv)
        self.assert_refused(heed.InvalidArgument, "wanted has 'bias'; it must be one of", heed.attention_backward, out, q, k, v, out, lse,
                            wanted=["bias"])
        self.assert_refused(heed.InvalidArgument, r"dout has the shape \[2, 7, 4, .*; it must be out's", heed._heed.attention_backward,
                            {"q": q, "k": k, "v": v, "out": out, "lse": lse}, {}, {"dout": out[..., :3]})
        self.assert_refused(heed.InvalidArgument, "dbias is given; the call has nothing", heed._heed.attention_backward,
                            {"q": q, "k": k, "v": v, "out": out, "lse": lse}, {}, {"dout": out, "dbias": out})
        self.assert_refused(heed.InvalidArgument, r"dq has the strides .*; they must be those of q", heed._heed.attention_backward,
                            {"q": q, "k": k, "v": v, "out": out, "lse": lse}, {},
                            {"dout": out, "dq": np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)})
        self.assert_refused(heed.InvalidArgument, "out or lse is missing", heed._heed.attention_backward, {"q": q, "k": k, "v": v}, {},
                            {"dout": out})


    def test_shapes_and_types(self):
        """Of dout, out and lse, in any layout: nothing is broadcast or converted."""
        q, k, v = make_qkv(SHAPE)
        out, lse = heed.attention(q, k, v, return_lse=True)
        outside = np.ascontiguousarray(out.swapaxes(1, 2)).swapaxes(1, 2)
        for sentence, changed in (
                (r"dout has the shape \[1, 7, 4, 32\]; it must be \[2, 7, 4, 32\]", {"dout": out[:1]}),
                (r"dout has the shape \[7, 4, 32\]; it must be", {"dout": out[0]}),
                (r"dout has the shape \[2, 7, 4, 1\]; it must be", {"dout": out[..., :1]}),
                ("dout is a float; it must be an array", {"dout": 1.0}),
                ("dout has elements of float64", {"dout": out.astype(np.float64)}),
                ("dout has elements of float64; they must be float32, as q's", {"dout": outside.astype(np.float64)}),
                ("dout has elements of float16; they must be float32", {"dout": out.astype(np.float16)}),
                (r"out has the shape \[2, 7, 4, 31\]; it must be \[2, 7, 4, 32\]", {"out": out[..., 1:]}),
                ("out has elements of float16; they must be float32", {"out": out.astype(np.float16)}),
                (r"lse has the shape \[2, 7, 4\]; it must be \[batch, num_heads, q_len\]", {"lse": lse.swapaxes(1, 2)}),
                ("lse has elements of float16; they must be float32", {"lse": lse.astype(np.float16)}),
                ("lse is a NoneType", {"lse": None})):
            with self.subTest(sentence=sentence):
                arguments = {"dout": out, "out": out, "lse": lse, **changed}
                self.assert_refused(heed.InvalidArgument, sentence, heed.attention_backward, arguments["dout"], q, k, v, arguments["out"],
                                    arguments["lse"])


class Linear(Test):
    def test_formula(self):
        random = np.random.default_rng(3)
        for dtype, rows in (("f32", (13,)), ("f32", (2, 5)), ("f16", (7,)), ("bf16", (7,))):
            x, dy = (typed(random.standard_normal((*rows, n)), dtype) for n in (24, 10))
            weight = typed(random.standard_normal((10, 24)), dtype)
            found = heed.linear_backward(dy, x, weight)
            flat_x, flat_dy = wide(x).reshape(-1, 24), wide(dy).reshape(-1, 10)
            for array, expected in zip(found, (wide(dy) @ wide(weight), flat_dy.T @ flat_x, flat_dy.sum(0))):
                self.assertEqual((array.dtype, array.shape), (x.dtype, expected.shape))
                self.assertLessEqual(np.abs(wide(array) - expected).max(), 8 * UNITS[dtype] * np.abs(expected).max())

    def test_sums_of_float32(self):
        """dweight and dbias before they are rounded to the inputs' type."""
        random = np.random.default_rng(4)
        for dtype in ("f16", "bf16"):
            x, dy, weight = (typed(random.standard_normal(shape), dtype) for shape in ((70, 24), (70, 10), (10, 24)))
            rounded, found = heed.linear_backward(dy, x, weight), heed.linear_backward(dy, x, weight, weight_dtype="float32")
            self.assert_equal(rounded.dx, found.dx)
            for array, single, exact in zip(rounded[1:], found[1:], (wide(dy).T @ wide(x), wide(dy).sum(0))):
                self.assertEqual(single.dtype, np.float32)
                self.assert_equal(array, single.astype(array.dtype))
                self.assertLessEqual(np.abs(wide(single) - exact).max(), 70 * UNITS["f32"] * np.abs(exact).max())

    def test_refusals(self):
        x, weight, dy = (np.ones(shape, np.float32) for shape in ((3, 4), (5, 4), (3, 5)))
        self.assert_refused(heed.InvalidArgument, r"dy has the shape \[3, 4\]; it must be \[3, 5\]", heed.linear_backward, x, x, weight)
        self.assert_refused(heed.InvalidArgument, r"x has the shape \[3, 4\]; it must be \[3, 5\]", heed.linear_backward, dy, x, weight.T)
        self.assert_refused(heed.InvalidArgument, "x has elements of float16; they must be float32", heed.linear_backward, dy,
                            x.astype(np.float16), weight)
        self.assert_refused(heed.InvalidArgument, "weight_dtype is 'float64'; it must be 'float32' or None", heed.linear_backward, dy, x,
                            weight, weight_dtype="float64")


class Heads(Test):
    def test_pooling(self):
        weight = np.arange(8 * 3 * 5, dtype=np.float32).reshape(24, 5)
        pooled = heed.mha_to_gqa(weight, 8, 2)
        np.testing.assert_allclose(pooled, weight.reshape(2, 4, 3, 5).mean(1).reshape(6, 5), rtol=1e-6)
        self.assert_equal(np.repeat(pooled.reshape(2, 1, 3, 5), 4, 1).reshape(24, 5), heed.gqa_to_mha(pooled, 8, 2))
        self.assert_equal(weight, heed.mha_to_gqa(weight, 8, 8))
        for dtype in ("f16", "bf16"):
            self.assertEqual(heed.mha_to_gqa(typed(weight, dtype), 4, 1).dtype, typed(weight, dtype).dtype)

    def test_refusals(self):
        weight = np.ones((24, 5), np.float32)
        for sentence, arguments in ((r"weight has the shape \[24, 5\]; it must be .* of 7 heads", (weight, 7, 1)),
                                    ("num_heads is 8; it must be a multiple of num_kv_heads, which is 3", (weight, 8, 3)),
                                    (r"weight has the shape \[24\]", (weight[:, 0], 8, 2))):
            self.assert_refused(heed.InvalidArgument, sentence, heed.mha_to_gqa, *arguments)


class DropoutMask(Test):
    def test_values(self):
        """What attention drops: with values of an identity the outputs are the weights."""
        q, k, _ = make_qkv(SHAPE)
        v = np.broadcast_to(np.eye(19, dtype=np.float32)[:, None], (2, 19, 2, 19)).copy()
        out = heed.attention(q, k, v, dropout_p=0.5, dropout_seed=9)
        self.assert_equal(heed.dropout_mask((2, 4, 7, 19), 0.5, 9), (out.swapaxes(1, 2) > 0).astype(np.uint8))
        self.assertTrue(heed.dropout_mask((1, 1, 2, 3), 0.0, 1).all())
        self.assert_refused(heed.InvalidArgument, "dropout_p is 1.5", heed.dropout_mask, (1, 1, 2, 3), 1.5, 1)


if __name__ == "__main__":
    unittest.main()
