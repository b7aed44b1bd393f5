"""heed.attention on arrays of JAX, on the CPU; needs jax."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np

from support import Shape, Test, heed, make_qkv, oracle

SHAPE = Shape(batch=3, q_len=7, kv_len=37)


class Jax(Test):
    def test_types(self):
        for name, dtype in (("f32", jnp.float32), ("f16", jnp.float16), ("bf16", jnp.bfloat16)):
            q, k, v = (jnp.asarray(x).astype(dtype) for x in make_qkv(SHAPE))
            out, lse = heed.attention(q, k, v, causal=True, return_lse=True)
            for result, kind in ((out, dtype), (lse, jnp.float32)):
                self.assertIsInstance(result, jax.Array)
                self.assertEqual(result.dtype, kind)
            expected = oracle.attend({"dtype": name, "causal": True}, *(np.asarray(x, np.float32) for x in (q, k, v)))
            self.assert_near(expected, out, lse)

    def test_masks_and_lengths(self):
        q, k, v = (jnp.asarray(x) for x in make_qkv(SHAPE))
        mask = np.random.default_rng(1).random((7, 37)) < 0.7
        lens = [5, 37, 0]
        expected = oracle.attend({}, *(np.asarray(x) for x in (q, k, v)), mask=mask, kv_lens=lens)
        self.assert_near(expected, heed.attention(q, k, v, mask=jnp.asarray(mask), kv_lens=jnp.asarray(lens)))

    def test_results_stay(self):
        """They are JAX's own: a later call writes to other memory."""
        q, k, v = (jnp.asarray(x) for x in make_qkv(SHAPE))
        first = heed.attention(q, k, v)
        copied = np.array(first)
        heed.attention(-q, k, v)
        self.assert_equal(copied, first)

    def test_given_outputs(self):
        q, k, v = (jnp.asarray(x) for x in make_qkv(SHAPE))
        out, lse = np.empty(q.shape, np.float32), np.empty((3, 4, 7), np.float32)
        results = heed.attention(q, k, v, out=out, lse=lse, return_lse=True)
        self.assertIs(results[0], out)
        self.assertIs(results[1], lse)
        self.assert_equal(heed.attention(q, k, v), out)

    def test_outputs_are_not_jaxs_to_write(self):
        q, k, v = (jnp.asarray(x) for x in make_qkv(SHAPE))
        self.assert_refused(heed.InvalidArgument, "out is an array of JAX, which are never written",
                            heed.attention, q, k, v, out=q + 0)


if __name__ == "__main__":
    unittest.main()
