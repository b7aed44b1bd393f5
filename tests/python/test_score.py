"""Score functions, of docs/examples/score, against the same as mask and bias: test_score.py EXTENSION MOD...

EXTENSION is an extension module whose table has kernels of the score functions MOD."""

import importlib.util
import sys
import unittest

import numpy as np


def load_extension(path):
    """In place of the package's own."""
    spec = importlib.util.spec_from_file_location("heed._heed", path)
    sys.modules["heed._heed"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


EXTENSION, *MODS = sys.argv[1:]
del sys.argv[1:]
load_extension(EXTENSION)

from support import Shape, Test, heed, make_qkv, oracle

SHAPE = Shape(batch=2, q_len=37, kv_len=37, head_dim=64, head_dim_v=64)
DOCUMENTS = np.sort(np.random.default_rng(1).integers(0, 4, (2, 37), dtype=np.int32))
LENGTH = np.array([37], np.int32)


class Score(Test):
    def assert_as(self, score_mod, score_buffers, options=None, **arrays):
        q, k, v = make_qkv(SHAPE)
        out, lse = heed.attention(q, k, v, score_mod=score_mod, score_buffers=score_buffers, return_lse=True, **(options or {}))
        self.assert_near(oracle.attend(options or {}, q, k, v, **arrays), out, lse)

    def test_visible(self):
        same = (DOCUMENTS[:, :, None] == DOCUMENTS[:, None])[:, None]
        for options in ({}, {"causal": True}):
            self.assert_as("document", [DOCUMENTS, LENGTH], options, mask=same)

    def test_logit(self):
        strength, reach = np.array([1, -2, 0.5, 3], np.float32), np.array([1, 5, 20, 50], np.float32)
        distance = np.arange(37)[None] - np.arange(37)[:, None]
        bias = strength[:, None, None] * np.tanh(distance / reach[:, None, None])
        self.assert_as("distance", [strength, reach], bias=bias[None].astype(np.float32))

    def test_plans_are_known_by_the_name(self):
        """Whatever the address of the string is."""
        prefix = np.array([20, 5], np.int32)
        token, key = np.arange(37)[:, None], np.arange(37)[None]
        sees = ((key <= token) | (key < prefix[:, None, None]))[:, None]
        same = (DOCUMENTS[:, :, None] == DOCUMENTS[:, None])[:, None]
        for _ in range(3):
            for name, buffers, mask in (("prefix_lm", [prefix], sees), ("document", [DOCUMENTS, LENGTH], same)):
                self.assert_as(str(name.encode(), "ascii"), buffers, mask=mask)

    def test_refusals(self):
        q, k, v = make_qkv(SHAPE)
        self.assert_refused(heed.Unsupported, "SCORE_MOD of_nobody.cpp", heed.attention, q, k, v, score_mod="of_nobody")
        self.assert_refused(heed.InvalidArgument, r"score_buffers\[1\]", heed.attention, q, k, v, score_mod="document",
                            score_buffers=[DOCUMENTS])
        self.assert_refused(heed.InvalidArgument, r"score_buffers\[0\]", heed.attention, q, k, v, score_mod="document",
                            score_buffers=[DOCUMENTS.astype(np.float32), LENGTH])

    def test_attention_probs_have_none(self):
        q, k, _ = make_qkv(SHAPE)
        self.assert_refused(heed.Unsupported, 'score_mod is "document"; heed_attention_probs knows no score functions',
                            heed.attention_probs, q, k, score_mod="document", score_buffers=[DOCUMENTS, LENGTH])

    def test_kernels(self):
        self.assertEqual({kernel["score_mod"] for kernel in heed.kernels()} - {""}, set(MODS))


if __name__ == "__main__":
    unittest.main()
