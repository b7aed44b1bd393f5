"""heed.Layer against the formulas of tests/layer/reference.py, from arrays and from a safetensors file."""

import pathlib
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "layer"))

import reference
from support import Test, heed, typed

SCRATCH = "wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo"
FUSED = "wqkv", "bqkv", "wo", "bo", "q_norm_weight", "q_norm_bias", "k_norm_weight", "k_norm_bias"
SIZES = {"max_batch": 10, "max_q_len": 128, "max_kv_len": 128}


class Form:
    """Inputs in float32, results in float64, and how far those of NumPy in float32 are from these."""

    def __init__(self, form, seed=0):
        inputs, compute = form(np.random.default_rng(seed))
        self.inputs = reference.in_type(inputs, np.float32)
        self.exact, self.single = compute(reference.in_type(inputs, np.float64)), compute(self.inputs)

    def weights(self, names):
        return {name: self.inputs[name] for name in names if name in self.inputs}


class LayerTest(Test):
    def assert_form(self, form, name, found):
        """As near as tests/layer/form_file.h asks: twice NumPy's error in float32, four times its largest."""
        exact = form.exact[name]
        self.assertEqual(found.shape, exact.shape)
        error, allowed = np.abs(found - exact), np.abs(form.single[name] - exact)
        rounding = np.abs(exact).max() * 2.0**-24
        self.assertLessEqual(np.sqrt((error**2).mean()), 2 * np.sqrt((allowed**2).mean()) + rounding)
        self.assertLessEqual(error.max(), 4 * allowed.max() + rounding)

    def test_separate_weights(self):
        form = Form(reference.mqa_scratch_narrow_v)
        layer = heed.Layer(form.weights(SCRATCH), dim_in=96, dim_out=72, num_heads=8, num_kv_heads=1, head_dim=20,
                           head_dim_v=8, mask_true_hides=True, **SIZES)
        self.assert_form(form, "y", layer(form.inputs["x"], mask=form.inputs["mask"]))
        out = np.empty((3, 37, 72), np.float32)
        self.assertIs(layer(form.inputs["x"], mask=form.inputs["mask"], out=out), out)
        self.assert_form(form, "y", out)

    def test_fused_weights_with_a_cache(self):
        form = Form(reference.fused_gqa)
        layer = heed.Layer(form.weights(FUSED), weight_layout="fused", dim_in=128, num_heads=8, num_kv_heads=2, causal=True,
                           clip_qkv=1.0, scale=0.25, qk_norm="model", **SIZES)
        for page_size in (None, 8):
            cache, first = layer.make_cache(3, 41, page_size=page_size), 0
            for step, length in enumerate(reference.STEP_LENS):
                x = np.ascontiguousarray(form.inputs["x"][:, first:first + length])
                first += length
                probs = np.empty((3, 8, length, first), np.float32)
                y = layer(x, cache=cache, probs=probs, bias=form.inputs["bias"][..., :first],
                          key_padding=np.ascontiguousarray(form.inputs["key_padding"][:, :first]))
                self.assertEqual(cache.kv_lens, [first] * 3)
                self.assert_form(form, f"y{step}", y)
                self.assert_form(form, f"probs{step}", probs)

    def test_cross_attention(self):
        form = Form(reference.paper_mqa)
        weights = {f"w{name}": form.inputs[f"P_{name}"] for name in "qkvo"}
        layer = heed.Layer(weights, weight_layout="einsum", dim_in=96, num_heads=6, num_kv_heads=1, head_dim=16,
                           head_dim_v=24, cross=True, scale=1.0, **SIZES)
        x, context, bias = (form.inputs[name] for name in ("X", "M", "bias"))
        self.assert_form(form, "y", layer(x, context, bias=bias))
        cache = layer.make_cache(4, 23)
        layer.prepare(cache, context)
        self.assert_form(form, "y", layer(x, cache=cache, bias=bias))
        layer.prepare(cache, context, [23, 1, 5, 23])
        self.assertEqual(cache.kv_lens, [23, 1, 5, 23])

    def test_dropout(self):
        form = Form(reference.gqa_8_4)
        layer = heed.Layer(form.weights(SCRATCH), dim_in=128, num_heads=8, num_kv_heads=4, dropout_p=0.1, **SIZES)
        x, mask = form.inputs["x"], form.inputs["mask"]
        self.assert_form(form, "y_eval", layer(x, mask=mask))
        self.assert_form(form, "y_train", layer(x, mask=mask, training=True, dropout_seed=1234567890123, dropout_offset=77))

    def test_safetensors(self):
        form = Form(reference.mqa_scratch_narrow_v)
        config = {"dim_in": 96, "dim_out": 72, "num_heads": 8, "num_kv_heads": 1, "head_dim": 20, "head_dim_v": 8, **SIZES}
        expected = heed.Layer(form.weights(SCRATCH), **config)(form.inputs["x"])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.safetensors"
            reference.write(path, {f"attention.{name}": array for name, array in form.weights(SCRATCH).items()})
            names = {name: f"attention.{name}" for name in SCRATCH}
            layer = heed.Layer.from_safetensors(path, names, **config)
            self.assert_equal(expected, layer(form.inputs["x"]))
            self.assert_refused(heed.InvalidArgument, "no tensor", heed.Layer.from_safetensors, path, {"wq": "wq"}, **config)
            self.assert_refused(heed.InvalidArgument, "wq has 1920 elements; the layer's shape .160, 96. has 15360",
                                heed.Layer.from_safetensors, path, {**names, "wq": "attention.wk"}, **config)
            self.assert_refused(heed.Error, "missing", heed.Layer.from_safetensors, path.with_name("missing"), names, **config)

    def test_caches(self):
        form = Form(reference.incremental_mqa)
        layer = heed.Layer({f"w{name}": form.inputs[f"P_{name}"] for name in "qkvo"}, weight_layout="einsum", dim_in=96,
                           num_heads=6, num_kv_heads=1, head_dim=16, head_dim_v=24, scale=1.0, causal=True, **SIZES)
        x = form.inputs["X"]
        cache = layer.make_cache(3, 128, page_size=16)
        layer(np.ascontiguousarray(x[:, :100]), cache=cache)
        for sequence in range(3):
            cache.truncate(sequence, 90)
        y = layer(np.ascontiguousarray(x[:, 90:]), cache=cache)
        form.exact["tail"], form.single["tail"] = form.exact["y"][:, 90:], form.single["y"][:, 90:]
        self.assert_form(form, "tail", y)
        cache.fork(0, 2)
        self.assertEqual(cache.kv_lens, [128] * 3)
        cache.reset()
        self.assertEqual(cache.kv_lens, [0] * 3)
        pages = layer.make_cache(3, 128, page_size=16, num_pages=2)
        with self.assertRaisesRegex(heed.OutOfMemory, "the cache has 2 of 2 pages free; the new tokens need 24"):
            layer(x, cache=pages)
        self.assertEqual(pages.kv_lens, [0] * 3)
        half = layer.make_cache(3, 128, int8=True)
        layer(x, cache=half)
        self.assertEqual(half.kv_lens, [128] * 3)

    def test_packed_tokens(self):
        form = Form(reference.gqa_8_4)
        layer = heed.Layer(form.weights(SCRATCH), dim_in=128, num_heads=8, num_kv_heads=4, causal=True, **SIZES)
        x, lens = form.inputs["x"], [2, 0, 1]
        padded = layer(x, q_lens=lens)
        tokens = np.concatenate([x[b, :n] for b, n in enumerate(lens)])
        y = layer(tokens, cu_seqlens=np.array([0, 2, 2, 3]))
        np.testing.assert_array_equal(y, np.concatenate([padded[b, :n] for b, n in enumerate(lens)]))
        self.assertEqual(layer(tokens[:0], cu_seqlens=[0]).shape, (0, y.shape[1]))
        for sentence, call in (
                (r"cu_seqlens\[3\] is 2; it must be 3, the tokens of x", lambda: layer(tokens, cu_seqlens=[0, 1, 1, 2])),
                (r"cu_seqlens\[1\] is -1 after 0; it must grow by 0\.\.4, which is q_len",
                 lambda: layer(tokens, cu_seqlens=[0, -1, 3])),
                ("cu_seqlens is empty; it must have batch \\+ 1 elements", lambda: layer(tokens, cu_seqlens=[])),
                ("x has the shape .* it must (be|have) .*total, dim_in", lambda: layer(x, cu_seqlens=[0, 3])),
                ("q_lens is not NULL; with cu_seqlens it must be NULL", lambda: layer(tokens, cu_seqlens=[0, 3], q_lens=[3]))):
            with self.subTest(sentence=sentence):
                self.assert_refused(heed.InvalidArgument, sentence, call)

    def test_types(self):
        for dtype in ("f16", "bf16"):
            form = Form(reference.gqa_as_mqa)
            weights = {name: typed(array, dtype) for name, array in form.weights(SCRATCH).items()}
            x = typed(form.inputs["x"], dtype)
            y = heed.Layer(weights, dim_in=128, num_heads=8, num_kv_heads=1, **SIZES)(x)
            self.assertEqual(y.dtype, x.dtype)
            rounded = {name: array.astype(np.float32) for name, array in weights.items()}
            wide = heed.Layer(rounded, dim_in=128, num_heads=8, num_kv_heads=1, **SIZES)(x.astype(np.float32))
            unit = 2.0**-11 if dtype == "f16" else 2.0**-8  # of q, k, v, heads and y, in sums of up to 128 products
            self.assertLess(np.abs(y.astype(np.float32) - wide).max(), 5 * unit * np.abs(wide).max())

    def test_refusals(self):
        form = Form(reference.gqa_8_4)
        weights, config = form.weights(SCRATCH), {"dim_in": 128, "num_heads": 8, "num_kv_heads": 4, **SIZES}
        layer = heed.Layer(weights, **config)
        x = form.inputs["x"]
        refused = heed.InvalidArgument
        for sentence, make in (
                ("weights has the name 'w1'; it must be one of wq, wk", lambda: heed.Layer({"w1": x}, **config)),
                ("qk_norm is 'rms'; it must be one of", lambda: heed.Layer(weights, **config, qk_norm="rms")),
                ("num_kv_heads", lambda: heed.Layer(weights, **{**config, "num_kv_heads": 3})),
                (r"wk has the shape \[128, 64\]; it must be \[64, 128\]",
                 lambda: heed.Layer({**weights, "wk": weights["wk"].T.copy()}, **config)),
                ("wq has the strides .* it must be packed", lambda: heed.Layer({**weights, "wq": weights["wq"].T}, **config)),
                ("page_size is 0; it must be 1", lambda: layer.make_cache(1, 1, page_size=0)),
                ("num_pages is 3 without page_size", lambda: layer.make_cache(1, 1, num_pages=3)),
                ("capacity", lambda: layer.make_cache(1, 1000)),
                (r"x has the shape \[3, 2, 64\]; it must be", lambda: layer(x[..., :64].copy())),
                ("out has the strides .* it must be packed", lambda: layer(x, out=np.asfortranarray(x))),
                ("x has elements of float16; they must be float32", lambda: layer(x.astype(np.float16))),
                (r"q_lens has the shape \[2\]; it must be \[batch\]", lambda: layer(x, q_lens=[1, 2])),
                ("mask", lambda: layer(x, mask=np.ones((3, 1, 1, 7), np.uint8)))):
            with self.subTest(sentence=sentence):
                self.assert_refused(refused, sentence, make)
        with self.assertRaisesRegex(TypeError, "unknown keyword: heads"):
            heed.Layer(weights, **config, heads=3)

    def test_shapes_of_what_goes_with_scores(self):
        form = Form(reference.gqa_8_4)
        layer = heed.Layer(form.weights(SCRATCH), dim_in=128, num_heads=8, num_kv_heads=4, mask_true_hides=True, **SIZES)
        x = np.random.default_rng(3).standard_normal((2, 12, 128), np.float32)
        scores = (2, 8, 12, 12)
        layer(x, key_padding=np.zeros((2, 12), bool), mask=np.zeros((12, 12), bool), bias=np.zeros((8, 1, 12), np.float32),
              probs=np.empty(scores, np.float32))
        of_keys, of_scores = r"it must be \[batch, kv_len\], which is \[2, 12\]", r"\[batch, num_heads, q_len, kv_len\]"
        for name, shape, allowed in (
                ("key_padding", (12, 2), of_keys), ("key_padding", (24,), of_keys), ("key_padding", (2, 1, 12), of_keys),
                ("probs", (2, 12, 8, 12), of_scores), ("probs", (16, 12, 12), of_scores), ("probs", (2304,), of_scores),
                ("mask", (12, 2), of_scores), ("mask", (2, 8, 12), of_scores), ("bias", (2, 8, 12, 0), of_scores)):
            array = np.zeros(shape, np.float32 if name in ("probs", "bias") else np.uint8)
            with self.subTest(name=name, shape=shape):
                self.assert_refused(heed.InvalidArgument, rf"{name} has the shape \{list(shape)}.*{allowed}", layer, x, **{name: array})
                self.assertFalse(array.any())
        repeated = np.broadcast_to(np.uint8(0), (5, 7))
        self.assert_refused(heed.InvalidArgument, r"mask has the shape \[5, 7\]", layer, x, mask=repeated)

        cache = layer.make_cache(2, 20)
        layer(x[:, :3].copy(), cache=cache, q_lens=[3, 1])
        cache.truncate(1, 0)
        self.assert_refused(heed.InvalidArgument, r"key_padding has the shape \[2, 4\]; .* which is \[2, 8\]", layer, x[:, :5].copy(),
                            cache=cache, key_padding=np.zeros((2, 4), np.uint8))
        self.assert_refused(heed.InvalidArgument, r"probs has the shape .*; .* which is \[2, 8, 5, 5\]", layer, x[:, :5].copy(),
                            cache=cache, q_lens=[2, 5], probs=np.empty((2, 5, 8, 5), np.float32))
        self.assertEqual(cache.kv_lens, [3, 0])
        layer(x[:, :5].copy(), cache=cache, q_lens=[2, 5], key_padding=np.zeros((2, 5), np.uint8))

    def test_shapes_of_weights_with_one_axis(self):
        form = Form(reference.gqa_8_4)
        config = {"dim_in": 128, "num_heads": 8, "num_kv_heads": 4, "rotary_dim": 8, "max_position": 6, "qk_norm": "head", **SIZES}
        shapes = {"bq": (128,), "bv": (64,), "bo": (128,), "q_norm_weight": (16,), "k_norm_weight": (16,), "sink": (8,),
                  "rope_cos": (6, 4), "rope_sin": (6, 4)}
        matrices = {name: form.inputs[name] for name in ("wq", "wk", "wv", "wo")}
        weights = {**matrices, **{name: np.ones(shape, np.float32) for name, shape in shapes.items()}}
        heed.Layer(weights, **config)
        heed.Layer({**weights, "bq": np.ones((8, 16), np.float32), "sink": np.ones(8, np.float32)}, **config)
        for name, shape, allowed in (("bq", (16, 8), "128"), ("bv", (2, 32), "64"), ("bo", (64, 2), "128"), ("sink", (2, 4), "8"),
                                     ("sink", (8, 1), "8"), ("alibi_slopes", (8, 1, 1), "8"), ("bq", (128, 1), "128"),
                                     ("q_norm_weight", (16, 1), "16"), ("q_norm_weight", (4, 4), "16"), ("rope_cos", (4, 6), "6, 4"), ("rope_sin", (24,), "6, 4")):
            with self.subTest(name=name):
                self.assert_refused(heed.InvalidArgument, rf"{name} has the shape \[.*; it must be \[{allowed}\]", heed.Layer,
                                    {**weights, name: np.ones(shape, np.float32)}, **config)


if __name__ == "__main__":
    unittest.main()
