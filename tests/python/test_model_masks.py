"""Masks of transformers that reach Heed as what they are; needs torch and transformers."""

import itertools
import unittest

import torch
from transformers import masking_utils

import heed
import heed.transformers
from heed._model_masks import Mask, make_mask
from support import Test

KV_LEN = 23
GENERATOR = torch.Generator().manual_seed(3)
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(6),
    "window of one": masking_utils.sliding_window_causal_mask_function(1),
    "both ways": masking_utils.sliding_window_bidirectional_mask_function(4),
}
COLUMNS = torch.arange(KV_LEN)
PADDING = {
    "none": None,
    "nowhere": torch.ones(3, KV_LEN, dtype=torch.bool),
    "left": COLUMNS >= torch.tensor([[0], [5], [5]]),
    "same left": (COLUMNS >= 4).expand(3, KV_LEN),
    "right": COLUMNS < torch.tensor([[23], [7], [1]]),
    "short": torch.ones(3, 17, dtype=torch.bool),
    "both": (COLUMNS >= torch.tensor([[2], [0], [5]])) & (COLUMNS < torch.tensor([[23], [9], [20]])),
    "all": COLUMNS >= torch.tensor([[0], [23], [0]]),
}


def attend(mask, q_len, is_causal=False, bias=None, kv_len=KV_LEN):
    query = torch.randn(3, 4, q_len, 16, generator=GENERATOR)
    key, value = (torch.randn(3, 2, kv_len, 16, generator=GENERATOR) for _ in range(2))
    before = heed._heed.num_calls()
    out, _ = heed.transformers.attention_forward(torch.nn.Module(), query, key, value, mask, scaling=0.3, is_causal=is_causal,
                                                 position_bias=bias)
    return out, heed._heed.num_calls() - before, (query, key, value)


def expected(dense, query, key, value, bias):
    logits = 0.3 * query.double() @ key.repeat_interleave(2, 1).transpose(2, 3).double()
    logits = logits if bias is None else logits + bias
    probs = torch.softmax(logits.masked_fill(~dense, -torch.inf), -1).nan_to_num(0)
    return (probs @ value.repeat_interleave(2, 1).double()).transpose(1, 2)


class Masks(Test):
    def test_patterns(self):
        """What the dense mask gives, for every pattern, padding, number of queries and place of theirs."""
        for (name, function), (padding, tokens), (q_len, q_offset, kv_offset) in itertools.product(
                FUNCTIONS.items(), PADDING.items(),
                ((1, 22, 0), (1, 16, 0), (23, 0, 0), (5, 18, 0), (7, 0, 0), (1, 30, 8), (4, 26, 8))):
            if kv_offset > 0 and tokens is not None:
                tokens = torch.cat([torch.ones(3, kv_offset, dtype=torch.bool), tokens], 1)
            arguments = (3, q_len, KV_LEN, q_offset, kv_offset, function, tokens)
            for bias in (None, torch.randn(1, 4, q_len, KV_LEN, generator=GENERATOR)):
                with self.subTest(pattern=name, padding=padding, q_len=q_len, q_offset=q_offset, kv_offset=kv_offset):
                    mask = make_mask(*arguments)
                    dense = masking_utils.sdpa_mask(*arguments, allow_is_causal_skip=False)
                    out, calls, inputs = attend(mask, q_len, name == "causal", bias)
                    self.assertTrue(mask is None or type(mask) is Mask)
                    self.assertLessEqual(calls, 1 if q_len == 1 else 3)
                    self.assertLess((out - expected(dense, *inputs, bias)).abs().max(), 1e-5)

    def test_none_for_what_a_module_knows(self):
        self.assertIsNone(make_mask(3, 23, 23))
        self.assertIsNone(make_mask(3, 1, 23, 22, attention_mask=PADDING["nowhere"]))
        self.assertIsNone(make_mask(3, 1, 23, 22, mask_function=masking_utils.sliding_window_causal_mask_function(23)))
        self.assertIsNone(make_mask(3, 23, 23, mask_function=FUNCTIONS["bidirectional"], allow_is_bidirectional_skip=True))
        for options in ({"allow_is_causal_skip": False}, {"attention_mask": PADDING["left"]},
                        {"mask_function": masking_utils.sliding_window_causal_mask_function(22)}):
            self.assertIs(type(make_mask(3, 23, 23, **options)), Mask)

    def test_other_masks_are_dense(self):
        """Overlays, chunks, several runs of tokens: what "sdpa" gets."""
        gaps = PADDING["nowhere"].clone()
        gaps[1, 7] = False
        chunks = masking_utils.chunked_causal_mask_function(8, torch.zeros(3, dtype=torch.long))
        overlaid = masking_utils.or_masks(FUNCTIONS["causal"], FUNCTIONS["window"])
        for function, tokens in ((FUNCTIONS["causal"], gaps), (chunks, None), (overlaid, None)):
            mask = make_mask(3, 23, 23, mask_function=function, attention_mask=tokens, allow_is_causal_skip=False)
            dense = masking_utils.sdpa_mask(3, 23, 23, mask_function=function, attention_mask=tokens, allow_is_causal_skip=False)
            self.assertIs(type(mask), torch.Tensor)
            self.assert_equal(dense, mask)
            out, calls, inputs = attend(mask, 23)
            self.assertEqual(calls, 1)
            self.assertLess((out - expected(dense, *inputs, None)).abs().max(), 1e-5)

    def test_operations_write_the_mask(self):
        """A model that slices or combines its mask goes on with the dense one."""
        arguments = (3, 5, KV_LEN, 18, 0, FUNCTIONS["window"], PADDING["left"])
        mask, dense = make_mask(*arguments), masking_utils.sdpa_mask(*arguments)
        self.assertEqual((mask.shape, mask.dtype, mask.dim()), (dense.shape, torch.bool, 4))
        for change in (lambda x: x[..., :20], torch.logical_not, lambda x: x & torch.ones(5, KV_LEN, dtype=torch.bool),
                       lambda x: torch.where(x, 0.0, -torch.inf), torch.clone):
            changed = change(mask)
            self.assertIs(type(changed), torch.Tensor)
            self.assert_equal(change(dense), changed)
        self.assertIn("heed mask of (3, 1, 5, 23)", repr(mask))

    def test_mask_of_other_keys(self):
        """A mask that a model made for other keys than the layer has is refused, as a dense one."""
        self.assert_refused(heed.InvalidArgument, "mask has the shape", attend, make_mask(3, 5, KV_LEN, 17), 5, kv_len=22)


if __name__ == "__main__":
    unittest.main()
