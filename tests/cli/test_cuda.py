#!/usr/bin/env python3
"""`heed run` and `heed check` on a CUDA device, which libcuda.so.1 of LD_LIBRARY_PATH is."""

import unittest

import numpy as np

from case_file import CliTest, Shape, main, make_qkv


class Cuda(CliTest):
    def setUp(self):
        super().setUp()
        self.shape = Shape()
        self.tensors = {name: array.astype(np.float16) for name, array in zip("qkv", make_qkv(self.shape))}

    def assert_good(self, problem, **arrays):
        self.write_afresh({"dtype": "f16", **problem}, **self.tensors, **arrays)
        done = self.call("check", self.case, "--device", "cuda")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"kernel   attention_prefill_f16_\S*_sm(75|80)\n")
        done = self.call("run", self.case, "--device", "cuda", "--repeat", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.outputs(), ["case.out.safetensors"])
        self.assertTrue(np.isfinite(self.results()[0].astype(np.float32)).all())

    def test_dense(self):
        self.assert_good({"causal": True})

    def test_lengths_and_modifiers(self):
        shape, random = self.shape, np.random.default_rng(2)
        self.assert_good({"position": "bottom_right", "softcap": 5},
                         kv_lens=np.arange(1, shape.batch + 1, dtype=np.int32),
                         sink=random.standard_normal(shape.num_heads, dtype=np.float32),
                         alibi_slopes=np.full(shape.num_heads, 0.1, dtype=np.float32),
                         bias=random.standard_normal((1, 1, shape.q_len, shape.kv_len), dtype=np.float32))


if __name__ == "__main__":
    main()
