"""heed.attention on PyTorch's tensors, the registered operator and scaled_dot_product_attention; needs torch."""

import itertools
import pathlib
import tempfile
import unittest

import numpy as np
import torch
import torch.nn.functional as F

import heed.torch
from support import Shape, Test, heed, make_qkv, oracle, read_tensors

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SHAPE = Shape(batch=3, q_len=7, kv_len=37)
sdpa = heed.torch.scaled_dot_product_attention


def tensors(dtype=torch.float32, shape=SHAPE):
    return [torch.from_numpy(array).to(dtype) for array in make_qkv(shape)]


def to_oracle(*arrays):
    return [array.float().numpy() for array in arrays]


class Attention(Test):
    def test_types_and_strides(self):
        for name, dtype in DTYPES.items():
            q, k, v = tensors(dtype)
            expected = oracle.attend({"dtype": name, "causal": True, "position": "bottom_right"}, *to_oracle(q, k, v))
            for views in ((q, k, v), [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]):
                out, lse = heed.attention(*views, causal=True, position="bottom_right", return_lse=True)
                self.assertEqual((out.dtype, lse.dtype), (dtype, torch.float32))
                self.assert_near(expected, out.float(), lse)

    def test_the_memory_is_pytorchs(self):
        q, k, v = tensors()
        out = torch.full(q.shape, torch.nan)
        self.assertIs(heed.attention(q, k, v, out=out), out)
        self.assert_equal(heed.attention(*(x.numpy() for x in (q, k, v))), out)
        self.assert_equal(heed.attention(q, k.numpy(), v.numpy()), out)

    def test_masks_and_lengths(self):
        q, k, v = tensors()
        mask = torch.rand(3, 1, 7, 37) < 0.7
        lens = torch.tensor([5, 37, 0])
        expected = oracle.attend({}, *to_oracle(q, k, v), mask=mask.numpy(), kv_lens=lens.tolist())
        self.assert_near(expected, heed.attention(q, k, v, mask=mask, kv_lens=lens))

    def test_tensors_that_require_gradients(self):
        q, k, v = tensors()
        q.requires_grad_()
        with torch.no_grad():
            self.assert_equal(heed.attention(q.detach(), k, v), heed.attention(q, k, v))
        self.assert_refused(heed.Unsupported, "q requires a gradient, which Heed does not compute", heed.attention_probs, q, k)

    def test_tensors_without_memory(self):
        q, k, v = tensors()
        self.assert_refused(heed.InvalidArgument, "q is a tensor that PyTorch does not export", heed.attention, q.to_sparse(), k, v)
        self.assert_refused(heed.Unsupported, "q is a tensor of torch.func's transforms",
                            torch.func.vmap(lambda x: heed.attention(x, k, v)), q[None])

    def test_cache(self):
        q, k, v = tensors()
        cache = heed.KVCache(3, 40, 2, 32, page_size=8, like=q)
        self.assertIsInstance(cache.k, torch.Tensor)
        cache.append(k, v)
        self.assert_near(oracle.attend({"position": "bottom_right", "causal": True}, *to_oracle(q, k, v)),
                         cache.attention(q, causal=True))


class Operator(Test):
    def test_opcheck(self):
        for dtype in DTYPES.values():
            q, k, v = tensors(dtype)
            bias = torch.randn(1, 4, 7, 37)
            torch.library.opcheck(heed.torch.attention, (q, k, v))
            torch.library.opcheck(heed.torch.attention, (q, k, v, torch.ones(7, 37, dtype=torch.bool), bias, torch.randn(4), True),
                                  {"scale": 0.5, "softcap": 3.0})

    def test_compiled(self):
        def model(query, key, value):
            return torch.relu(sdpa(query * 2, key, value, is_causal=True)) + 1

        query, key, value = (x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in tensors())
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            self.assert_equal(model(query, key, value), compiled(query, key, value))
            self.assert_equal(model(query[:, :, :3], key, value), compiled(query[:, :, :3], key, value))


class Sdpa(Test):
    def inputs(self, dtype=torch.float32, gqa=False):
        q, k, v = (x.transpose(1, 2) for x in tensors(dtype))
        return (q, k, v) if gqa else (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    def assert_as_torch(self, q, k, v, **options):
        """Within the oracle's bounds, and as torch has it: at most both their distances from the oracle apart."""
        name = {dtype: name for name, dtype in DTYPES.items()}[q.dtype]
        problem = {"dtype": name, "causal": options.get("is_causal", False), "scale": options.get("scale")}
        mask, arrays = options.get("attn_mask"), {}
        if mask is not None:
            arrays["mask" if mask.dtype == torch.bool else "bias"] = (mask if mask.dtype == torch.bool else mask.float()).numpy()
        expected = oracle.attend(problem, *to_oracle(*(x.transpose(1, 2) for x in (q, k, v))), **arrays)
        out = sdpa(q, k, v, **options)
        self.assertEqual((out.dtype, out.shape), (q.dtype, (*q.shape[:-1], v.shape[-1])))
        self.assert_near(expected, out.transpose(1, 2).float())
        theirs = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **{
            **options, "attn_mask": mask if mask is None or mask.dtype == torch.bool else mask.double()})
        rows = ~np.isneginf(expected.lse)
        difference = np.abs(theirs.numpy() - expected.out.transpose(0, 2, 1, 3))[rows]
        # The oracle means what PyTorch means: both are fp64, with sums of less than 2^10 terms.
        self.assertLess(difference.max(), 2.0 ** (10 - 52) * np.abs(expected.out).max())

    def test_plain(self):
        for dtype, causal, scale in itertools.product(DTYPES.values(), (False, True), (None, 0.3)):
            self.assert_as_torch(*self.inputs(dtype), is_causal=causal, scale=scale)

    def test_masks(self):
        full = (3, 4, 7, 37)
        generator = torch.Generator().manual_seed(1)
        for shape in ((7, 37), (1, 1, 1, 37), (3, 1, 7, 1), (1, 7, 37), full):
            keep = torch.rand(shape, generator=generator) < 0.7
            if shape[-1] == 37:
                keep[..., 0] = True  # rows without keys: test_rows_without_keys
            else:
                keep[:] = True
            self.assert_as_torch(*self.inputs(), attn_mask=keep)
            self.assert_as_torch(*self.inputs(), attn_mask=torch.randn(shape, generator=generator).masked_fill(~keep, -torch.inf))
        expanded = (torch.rand(3, 1, 7, 37, generator=generator) < 0.7).expand(full)
        self.assert_as_torch(*self.inputs(), attn_mask=expanded)
        self.assert_as_torch(*self.inputs(), attn_mask=torch.randn(37, 7, generator=generator).t())
        for dtype in (torch.float16, torch.bfloat16):
            self.assert_as_torch(*self.inputs(dtype), attn_mask=torch.randn(full, generator=generator).to(dtype))

    def test_rows_without_keys(self):
        mask = torch.ones(7, 37, dtype=torch.bool)
        mask[3] = False
        out = sdpa(*self.inputs(), attn_mask=mask)
        self.assertTrue((out[:, :, 3] == 0).all())

    def test_gqa(self):
        self.assert_as_torch(*self.inputs(gqa=True), enable_gqa=True)

    def test_three_dimensions(self):
        q, k, v = (x[:, 0] for x in self.inputs())
        mask = torch.rand(3, 7, 37) < 0.7
        for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask[0]}):
            four = {name: x[:, None] if getattr(x, "dim", int)() == 3 else x for name, x in options.items()}
            self.assert_equal(sdpa(q[:, None], k[:, None], v[:, None], **four)[:, 0], sdpa(q, k, v, **options))

    def test_ranks_and_broadcast_batches(self):
        """Ranks from 2 on, also of each its own; an axis of batch or, without enable_gqa, of heads that has 1 element serves any."""
        generator = torch.Generator().manual_seed(5)

        def random(*shape):
            return torch.randn(shape, generator=generator)

        for q, k, v, options in (
                ((7, 16), (9, 16), (9, 8), {"attn_mask": random(7, 9)}),
                ((7, 16), (9, 16), (9, 8), {"is_causal": True}),
                ((2, 7, 16), (1, 9, 16), (2, 9, 16), {"attn_mask": random(2, 7, 9)}),
                ((2, 3, 7, 16), (1, 3, 9, 16), (1, 3, 9, 16), {}),
                ((1, 3, 7, 16), (2, 3, 9, 16), (2, 3, 9, 16), {"attn_mask": random(2, 1, 7, 9)}),
                ((2, 3, 7, 16), (2, 1, 9, 16), (2, 1, 9, 16), {}),
                ((2, 4, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16), {"enable_gqa": True}),
                ((5, 2, 3, 7, 16), (1, 2, 3, 9, 16), (5, 1, 3, 9, 16), {"is_causal": True}),
                ((5, 2, 3, 7, 16), (5, 2, 3, 9, 16), (5, 2, 3, 9, 16), {"attn_mask": random(2, 1, 7, 9)}),
                ((5, 2, 3, 7, 16), (5, 2, 3, 9, 16), (5, 2, 3, 9, 16), {"attn_mask": random(5, 1, 3, 1, 9) > 0}),
                ((5, 2, 4, 7, 16), (5, 1, 2, 9, 16), (5, 1, 2, 9, 16), {"enable_gqa": True}),
                ((3, 5, 2, 4, 7, 16), (1, 5, 2, 4, 9, 16), (3, 5, 2, 1, 9, 16), {"attn_mask": random(5, 1, 1, 7, 9)}),
                ((2, 3, 7, 16), (3, 9, 16), (1, 9, 16), {}),
                ((2, 3, 7, 16), (9, 16), (3, 9, 16), {"attn_mask": random(3, 1, 9)}),
                ((3, 7, 16), (9, 16), (9, 16), {"is_causal": True}),
                ((3, 7, 16), (2, 3, 9, 16), (2, 3, 9, 16), {"attn_mask": random(2, 1, 7, 9)}),
                ((7, 16), (2, 3, 9, 16), (2, 3, 9, 16), {}),
                ((4, 7, 16), (2, 9, 16), (2, 9, 16), {"enable_gqa": True}),
                ((2, 4, 7, 16), (2, 9, 16), (2, 9, 16), {"enable_gqa": True}),
                ((2, 4, 7, 16), (2, 2, 9, 16), (2, 1, 9, 16), {"enable_gqa": True})):
            with self.subTest(q=q, k=k, options=list(options)):
                inputs = random(*q), random(*k), random(*v)
                expected = F.scaled_dot_product_attention(*inputs, **options)
                found = sdpa(*inputs, **options)
                self.assertEqual(found.shape, expected.shape)
                self.assertLess((found - expected).abs().max(), 1e-5)

    def test_calls_come_straight_to_the_kernel(self):
        """Dense tensors: not by the operator, whose way through the dispatcher takes 15 us."""
        q, k, v = self.inputs()
        calls, operator = [], heed.torch.attention
        heed.torch.attention = lambda *arguments: calls.append(1) or operator(*arguments)
        try:
            with torch.inference_mode():
                sdpa(q, k, v)
            for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(7, 37, dtype=torch.bool)}, {"scale": 0.3},
                            {"attn_mask": torch.zeros(3, 1, 7, 37)}):
                sdpa(q, k, v, **options)
            sdpa(q, k[:, :2], v[:, :2], enable_gqa=True)
            sdpa(q, k, v[..., :8])
            self.assertEqual(calls, [])
            with torch.no_grad():
                torch.func.vmap(sdpa)(q[None], k[None], v[None])
            self.assertEqual(len(calls), 1)
        finally:
            heed.torch.attention = operator

    def test_same_bits_at_every_length_of_a_cache(self):
        """Strides and lengths that change with each call: what the operator gives, and the same a second time."""
        q, k, v = self.inputs()
        for kv_len in range(1, 38):
            keys, values = k[:, :, :kv_len].contiguous(), v[:, :, :kv_len].contiguous()
            out = sdpa(q[:, :, :1], keys, values)
            self.assert_equal(out, sdpa(q[:, :, :1], k[:, :, :kv_len], v[:, :, :kv_len]))
            self.assert_equal(out, heed.torch.attention(*(x.transpose(1, 2) for x in (q[:, :, :1], keys, values))).transpose(1, 2))

    def test_any_strides(self):
        q, k, v = self.inputs()
        expected = sdpa(q, k, v)
        columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
        self.assertNotEqual(columns[0].stride(-1), 1)
        self.assert_equal(expected, sdpa(*columns))
        one = torch.ones(1).expand(q.shape)
        self.assert_equal(sdpa(one.clone(), k, v), sdpa(one, k, v))

    def test_autocast(self):
        """Also without gradients: the type and bits of inputs in the type that PyTorch's own attention would take."""
        q, k, v = self.inputs()
        half = [x.bfloat16() for x in (q, k, v)]
        for options in ({}, {"is_causal": True}, {"attn_mask": torch.randn(7, 37)}):
            with torch.autocast("cpu", torch.bfloat16):
                found = sdpa(q, k, v, **options)
                self.assert_refused(heed.Unsupported, "query has elements of torch.float64", sdpa, q.double(), k.double(), v.double())
            self.assertEqual(found.dtype, torch.bfloat16)
            self.assert_equal(sdpa(*half, **options).float(), found.float())
            self.assertEqual(sdpa(q, k, v, **options).dtype, torch.float32)

    def test_meta(self):
        """Shapes without memory, as PyTorch's own gives them."""
        q, k, v = (x.to("meta").requires_grad_() for x in self.inputs())
        for options in ({}, {"attn_mask": torch.ones(7, 37, device="meta")}):
            out = sdpa(q, k, v[..., :8], **options)
            self.assertEqual((out.device.type, out.dtype, tuple(out.shape)), ("meta", torch.float32, (3, 4, 7, 8)))

    def test_dropout(self):
        q, k, v = self.inputs()
        torch.manual_seed(3)
        first, second = sdpa(q, k, v, dropout_p=0.5), sdpa(q, k, v, dropout_p=0.5)
        torch.manual_seed(3)
        self.assert_equal(first, sdpa(q, k, v, dropout_p=0.5))
        self.assertFalse(torch.equal(first, second))
        self.assertTrue((sdpa(q, k, v, dropout_p=1.0) == 0).all())

    def test_refusals(self):
        q, k, v = self.inputs()
        mask = torch.ones(7, 37, dtype=torch.bool)
        for kind, sentence, arguments, options in (
                (heed.Unsupported, "query has elements of torch.float64", (q.double(), k.double(), v.double()), {}),
                (heed.Unsupported, "query has 1 dimensions; it must have 2 or more", (q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]), {}),
                (heed.Unsupported, "query has the layout torch.sparse_coo; it must be dense", (q.to_sparse(), k, v), {}),
                (heed.Unsupported, "query has the head_dim 700; it must be 1..640", [torch.ones(1, 1, 3, 700)] * 3, {}),
                (heed.InvalidArgument, "query is a ndarray; it must be a torch.Tensor", (q.numpy(), k, v), {}),
                (heed.InvalidArgument, "key is on meta; it must be on cpu, as query", (q, k.to("meta"), v), {}),
                (heed.InvalidArgument, "attn_mask is on meta; it must be on cpu", (q, k, v), {"attn_mask": mask.to("meta")}),
                (heed.InvalidArgument, "attn_mask is a float; it must be a torch.Tensor", (q, k, v), {"attn_mask": 1.0}),
                (heed.Unsupported, "attn_mask has 0 dimensions; it must have 2 or more", (q, k, v), {"attn_mask": torch.tensor(True)}),
                (heed.Unsupported, "attn_mask has 1 dimensions; it must have 2 or more", (q, k, v), {"attn_mask": mask[0]}),
                (heed.Unsupported, "query is a nested tensor", (torch.nested.nested_tensor([torch.ones(3, 4)]), k, v), {}),
                (heed.InvalidArgument, "attn_mask is given with is_causal", (q, k, v), {"attn_mask": mask, "is_causal": True}),
                (heed.InvalidArgument, "attn_mask has elements of torch.int64", (q, k, v), {"attn_mask": mask.long()}),
                (heed.InvalidArgument, r"attn_mask has the shape \[7, 36\]; it must broadcast to \[3, 4, 7, 37\]", (q, k, v),
                 {"attn_mask": mask[:, 1:]}),
                (heed.InvalidArgument, r"attn_mask has the shape \[7, 36\]; it must broadcast to \[4, 7, 37\]", (q[0], k[0], v[0]),
                 {"attn_mask": mask[:, 1:]}),
                (heed.InvalidArgument, "value has 3 heads; they must divide query's 4", (q, k[:, :2], v[:, :3]), {"enable_gqa": True}),
                (heed.InvalidArgument, "key has 2 heads; it must have 4, or enable_gqa be True", (q, k[:, :2], v[:, :2]), {}),
                (heed.InvalidArgument, "value has 36 tokens; it must have key's 37", (q, k, v[:, :, 1:]), {}),
                (heed.InvalidArgument, "axis -4 of key has 2 elements; it must have 3, or 1", (q, k[:2], v), {}),
                (heed.InvalidArgument, "key has the head_dim 31; it must be query's, 32", (q, k[..., :31], v), {}),
                (heed.InvalidArgument, "key has elements of torch.float16; they must be torch.float32", (q, k.half(), v.half()), {})):
            with self.subTest(sentence=sentence):
                self.assert_refused(kind, sentence, sdpa, *arguments, **options)


class SaveCase(Test):
    def test_elements(self):
        """A case has the tensors' elements, also of bf16, which NumPy has not, and of views."""
        for dtype in DTYPES.values():
            q, k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors(dtype))
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "case.safetensors")
                heed.save_case(path, q, k, v, kv_lens=torch.tensor([1, 2, 3]), causal=True)
                stored = read_tensors(path)
            self.assertEqual(stored["kv_lens"].tolist(), [1, 2, 3])
            for name, tensor in zip("qkv", (q, k, v)):
                bits = tensor.view(torch.int16).numpy().view(np.uint16) if dtype == torch.bfloat16 else tensor.numpy()
                self.assert_equal(bits, stored[name])


if __name__ == "__main__":
    unittest.main()
