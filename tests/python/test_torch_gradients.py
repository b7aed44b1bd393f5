"""Gradients of Heed's attention in PyTorch, against float64 formulas, PyTorch's own and finite differences; needs torch."""

import itertools
import pathlib
import sys
import unittest
import warnings

import numpy as np
import torch
import torch.nn.functional as F

import heed.torch
from support import Test, heed

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "peers"))

import train

DTYPES = torch.float32, torch.float16, torch.bfloat16
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
sdpa = heed.torch.scaled_dot_product_attention


def exact(q, k, v, *, mask=None, bias=None, sink=None, causal=False, shift=0, window_left=-1, softcap=0.0, slopes=None, keep=None,
          dropout_p=0.0, lens=None):
    """heed.h's formula on [batch, len, heads, dim], in the inputs' type; query i is at i + shift."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, 2) for x in (k, v))
    logits = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    logits = logits if bias is None else logits + bias
    i, j = torch.arange(q.shape[1])[:, None] + shift, torch.arange(k.shape[1])
    logits = logits if slopes is None else logits + slopes[:, None, None] * (j - i)
    visible = torch.ones(logits.shape, dtype=torch.bool)
    for seen in (None if not causal else j <= i, None if window_left < 0 else j >= i - window_left, mask,
                 None if lens is None else j < lens[:, None, None, None]):
        visible = visible if seen is None else visible & seen
    logits = logits.masked_fill(~visible, -torch.inf)
    if sink is not None:
        logits = torch.cat([logits, sink[None, :, None, None].expand(*logits.shape[:3], 1)], -1)
    weights = torch.softmax(logits, -1).nan_to_num(0)[..., :k.shape[1]]
    weights = weights if keep is None else weights * keep / (1 - dropout_p)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def make(dtype=torch.float32, batch=2, q_len=9, kv_len=21, heads=4, kv_heads=2, dim=16, dim_v=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, q_len, heads, dim), (batch, kv_len, kv_heads, dim), (batch, kv_len, kv_heads, dim_v)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(function, inputs, dout):
    """Of `function`'s result at copies of the inputs that require them, by dout."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.to(out.dtype))]


class GradientTest(Test):
    def assert_close(self, expected, found, unit, count=64):
        """Each within `count` roundings of the gradient's largest element."""
        for n, (exact_one, one) in enumerate(zip(expected, found)):
            self.assertEqual(exact_one.shape, one.shape)
            difference = (exact_one - one.double()).abs().max()
            self.assertLessEqual(difference, count * unit * max(exact_one.abs().max(), 1), f"result {n}")


class Attention(GradientTest):
    def check(self, extra=(), dtype=torch.float32, inputs=None, exact_options=None, **options):
        """heed.attention with tensors `extra` by name, which require gradients too, compared with the formula."""
        inputs = [*(inputs or make(dtype)), *(tensor for _, tensor in extra)]
        names = [name for name, _ in extra]
        dout = torch.randn((*inputs[0].shape[:-1], inputs[2].shape[-1]), generator=torch.Generator().manual_seed(1)).to(dtype)
        found = gradients(lambda q, k, v, *rest: heed.attention(q, k, v, **dict(zip(names, rest)), **options), inputs, dout)
        same = options if exact_options is None else exact_options
        expected = gradients(lambda q, k, v, *rest: exact(q, k, v, **dict(zip(names, rest)), **same), [x.double() for x in inputs],
                             dout.double())
        self.assert_close(expected, found, UNIT[dtype])
        for tensor, gradient in zip(inputs, found[1:]):
            self.assertEqual(tensor.dtype, gradient.dtype)

    def test_types_and_heads(self):
        for dtype, kv_heads, causal in itertools.product(DTYPES, (1, 2, 4), (False, True)):
            with self.subTest(dtype=dtype, kv_heads=kv_heads, causal=causal):
                self.check(dtype=dtype, inputs=make(dtype, kv_heads=kv_heads), causal=causal)

    def test_what_joins_the_scores(self):
        generator = torch.Generator().manual_seed(2)
        bias = torch.randn(2, 4, 9, 21, generator=generator)
        for shape in ((2, 4, 9, 21), (1, 4, 9, 21), (2, 1, 1, 21), (9, 21), (1, 4, 9, 1)):
            with self.subTest(bias=shape):
                self.check([("bias", torch.randn(shape, generator=generator))])
        sink = torch.randn(4, generator=generator)
        self.check([("sink", sink), ("bias", bias)], causal=True)
        mask = torch.rand(2, 1, 9, 21, generator=generator) < 0.6
        self.check([("sink", sink)], mask=mask)
        mask[0, :, 3] = False  # a query without keys
        self.check(mask=mask)
        self.check(softcap=2.0)
        for dtype in (torch.float16, torch.bfloat16):
            self.check([("bias", bias.to(dtype)), ("sink", sink)], dtype=dtype)

    def test_positions_windows_lengths_and_slopes(self):
        slopes, lens = torch.tensor([0.5, 0.25, 0.125, -0.1]), torch.tensor([21, 5])
        self.check(causal=True, position="bottom_right", exact_options={"causal": True, "shift": 12})
        self.check(causal=True, window_left=3, position="bottom_right", exact_options={"causal": True, "shift": 12, "window_left": 3})
        self.check(alibi_slopes=slopes, causal=True, exact_options={"slopes": slopes.double(), "causal": True})
        self.check(kv_lens=lens, exact_options={"lens": lens})

    def test_dropout(self):
        keep = torch.from_numpy(heed.dropout_mask((2, 4, 9, 21), 0.3, 77, 5).astype(np.float64))
        self.check(dropout_p=0.3, dropout_seed=77, dropout_offset=5, exact_options={"keep": keep, "dropout_p": 0.3})

    def test_packed_sequences(self):
        q, k, v = (x.flatten(0, 1) for x in make(q_len=21))
        sums = torch.tensor([0, 5, 21, 42], dtype=torch.int32)
        dout = torch.randn(42, 4, 8)
        found = gradients(lambda *x: heed.attention(*x, cu_seqlens_q=sums, cu_seqlens_kv=sums, causal=True), (q, k, v), dout)
        parts = [slice(a, b) for a, b in zip(sums.tolist(), sums.tolist()[1:])]
        expected = [torch.cat(one) for one in zip(*([x[0] for x in gradients(
            lambda *x: exact(*x, causal=True), [y[None, part].double() for y in (q, k, v)], dout[None, part].double())]
            for part in parts))]
        self.assert_close(expected, found, UNIT[torch.float32])

    def test_layouts(self):
        """Heads outside, slices of a packed QKV, repeated elements, gradients that are expanded: the bits of packed ones."""
        q, k, v = make(q_len=21, kv_heads=4, dim_v=16)
        dout = torch.randn(2, 21, 4, 16)
        expected = gradients(lambda *x: heed.attention(*x, causal=True), (q, k, v), dout)
        outside = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        for found in (gradients(lambda *x: heed.attention(*x, causal=True), outside, dout),
                      gradients(lambda *x: heed.attention(*x, causal=True), (q, k, v), dout.transpose(1, 2).contiguous().transpose(1, 2))):
            for a, b in zip(expected, found):
                self.assert_equal(a, b)
        packed = torch.stack((q, k, v), 2).requires_grad_()
        heed.attention(*packed.unbind(2), causal=True).backward(dout)
        for n in range(3):
            self.assert_equal(expected[n + 1], packed.grad[:, :, n])
        one = q[:, :1].clone().requires_grad_()
        heed.attention(one.expand(q.shape), k, v).backward(dout)
        full = gradients(lambda *x: heed.attention(*x), (q[:, :1].expand(q.shape), k, v), dout)[1]
        self.assert_equal(full.sum(1, keepdim=True), one.grad)
        q.requires_grad_()
        heed.attention(q, k, v).sum().backward()
        self.assert_equal(gradients(lambda *x: heed.attention(*x), (q, k, v), torch.ones_like(dout))[1], q.grad)

    def test_only_what_is_asked_for(self):
        q, k, v = make()
        v.requires_grad_()
        out, lse = heed.attention(q, k, v, return_lse=True)
        self.assertFalse(lse.requires_grad)
        out.sum().backward()
        self.assertIsNone(q.grad)
        self.assert_equal(gradients(lambda *x: heed.attention(*x), make(), torch.ones_like(out))[3], v.grad)
        empty = [x.requires_grad_() for x in make(kv_len=0)]
        heed.attention(*empty).sum().backward()
        self.assertEqual([x.grad.abs().sum().item() for x in empty], [0, 0, 0])

    def test_deterministic(self):
        """The bits of all gradients, over repeats and numbers of threads."""
        inputs = make(q_len=200, kv_len=300, dim=64, dim_v=64)
        bias = torch.randn(1, 4, 200, 300)
        dout, threads = torch.randn(2, 200, 4, 64), torch.get_num_threads()
        torch.use_deterministic_algorithms(True)
        try:
            results = []
            for count in (1, 2, 3, 2, 1):
                torch.set_num_threads(count)
                results.append(gradients(lambda q, k, v, b: heed.attention(q, k, v, bias=b, causal=True), (*inputs, bias), dout))
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(False)
        for result in results[1:]:
            for a, b in zip(results[0], result):
                self.assert_equal(a, b)

    def test_gradcheck(self):
        """Finite differences in float32: steps of 1e-2 are exact to about 1e-4 here."""
        q, k, v = (x.requires_grad_() for x in make(batch=1, q_len=3, kv_len=5, heads=2, kv_heads=1, dim=4, dim_v=3))
        bias, sink = torch.randn(1, 2, 3, 5, requires_grad=True), torch.randn(2, requires_grad=True)

        def attend(q, k, v, bias, sink):
            return heed.attention(q, k, v, bias=bias, sink=sink, causal=True, position="bottom_right")

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Input #. requires gradient and is not a double precision")
            torch.autograd.gradcheck(attend, (q, k, v, bias, sink), eps=1e-2, atol=2e-3, rtol=2e-3, nondet_tol=0.0)

    def test_calls_without_gradients(self):
        """They compute where PyTorch records, and say so in backward."""
        q, k, v = make(dim=16, dim_v=16)
        expected = heed.attention(q, k, v)
        slopes = torch.ones(4, requires_grad=True)
        out = heed.attention(q, k, v, alibi_slopes=slopes)
        self.assert_refused(heed.Unsupported, "alibi_slopes requires a gradient, which Heed does not compute", out.sum().backward)
        q.requires_grad_()
        self.assert_equal(expected, heed.attention(q, k, v).detach())
        self.assert_refused(heed.InvalidArgument, "out is given while PyTorch records gradients", heed.attention, q, k, v,
                            out=torch.empty_like(expected))
        cache = heed.KVCache(2, 32, 2, 16, page_size=8, like=k)
        cache.append(k, v)
        out = cache.attention(q, causal=True)
        with torch.no_grad():
            self.assert_equal(cache.attention(q, causal=True), out.detach())
        self.assert_refused(heed.Unsupported, "kv_storage is paged", out.sum().backward)
        out = heed.attention(q, k, v)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            first.sum().backward()


class Sdpa(GradientTest):
    def inputs(self, dtype=torch.float32, kv_heads=4):
        return [x.transpose(1, 2) for x in make(dtype, kv_heads=kv_heads, dim_v=16)]

    def test_as_torch(self):
        """No further from float64 than twice PyTorch's own gradients in the same type, and a rounding."""
        generator = torch.Generator().manual_seed(4)
        masks = {"none": None, "bool": torch.rand(9, 21, generator=generator) < 0.7, "float": torch.randn(2, 1, 9, 21, generator=generator)}
        masks["bool"][:, 0] = True
        for dtype, (kind, mask), kv_heads in itertools.product(DTYPES, masks.items(), (2, 4)):
            options = {"enable_gqa": kv_heads == 2, "is_causal": kind == "none", "scale": 0.3}
            tensors = self.inputs(dtype, kv_heads)
            if kind == "float":
                tensors.append(mask.to(dtype))
            fixed = {"attn_mask": mask} if kind == "bool" else {}
            dout = torch.randn(2, 4, 9, 16, generator=generator).to(dtype)

            def call(function, options=options, fixed=fixed):
                return lambda q, k, v, *rest: function(q, k, v, **(fixed if not rest else {"attn_mask": rest[0]}), **options)

            expected = gradients(call(F.scaled_dot_product_attention), [x.double() for x in tensors], dout.double())
            theirs = gradients(call(F.scaled_dot_product_attention), tensors, dout)
            found = gradients(call(sdpa), tensors, dout)
            for name, a, b, c in zip(("out", "query", "key", "value", "attn_mask"), expected, theirs, found):
                with self.subTest(dtype=dtype, mask=kind, kv_heads=kv_heads, gradient=name):
                    error, allowed = ((a - x.double()).square().mean().sqrt() for x in (c, b))
                    self.assertLessEqual(error, 2 * allowed + UNIT[dtype] * a.abs().max())

    def test_ranks_and_broadcasts(self):
        for q, k, v in (((7, 16), (9, 16), (9, 8)), ((2, 7, 16), (1, 9, 16), (2, 9, 16)), ((2, 3, 7, 16), (2, 1, 9, 16), (2, 1, 9, 16)),
                        ((5, 2, 3, 7, 16), (1, 2, 3, 9, 16), (5, 1, 3, 9, 16))):
            with self.subTest(q=q):
                inputs = [torch.randn(shape) for shape in (q, k, v)]
                dout = torch.randn(*q[:-1], v[-1])
                expected = gradients(F.scaled_dot_product_attention, [x.double() for x in inputs], dout.double())
                self.assert_close(expected, gradients(sdpa, inputs, dout), UNIT[torch.float32])

    def test_dropout(self):
        q, k, v = (x.requires_grad_() for x in self.inputs())
        results = []
        for _ in range(2):
            torch.manual_seed(3)
            out = sdpa(q, k, v, dropout_p=0.5)
            results.append([out, *torch.autograd.grad(out.sum(), (q, k, v))])
        for a, b in zip(*results):
            self.assert_equal(a.detach(), b.detach())
        # The same weights are kept by both: v's gradient of a sum is the sum of the weights that out was made of.
        weights = sdpa(q, k, torch.eye(21).expand(2, 4, 21, 21), dropout_p=0.0)
        self.assertGreater((weights.sum(2) - results[0][3][..., 0]).abs().max(), 1e-3)
        torch.manual_seed(3)
        ones = sdpa(q, k, torch.ones_like(v), dropout_p=0.5)
        self.assertLess(abs(ones[..., 0].sum() - results[0][3][..., 0].sum()), 1e-3)

    def test_compiled(self):
        """The operators, under torch.compile: the bits of eager mode."""
        tensors = [*self.inputs(), torch.randn(1, 4, 9, 21)]

        def model(query, key, value, mask):
            return torch.relu(sdpa(query * 2, key, value, attn_mask=mask)) + 1

        dout = torch.randn(2, 4, 9, 16)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for a, b in zip(gradients(model, tensors, dout), gradients(compiled, tensors, dout)):
            self.assert_equal(a, b)

    def test_opcheck(self):
        q, k, v = (x.requires_grad_() for x in make())
        options = (None, torch.randn(1, 4, 9, 21, requires_grad=True), torch.randn(4, requires_grad=True), None, True, 0.5, 3.0, 0.0)
        torch.library.opcheck(heed.torch.attention_forward, (q, k, v, *options))
        torch.library.opcheck(heed.torch.attention_forward, (q, k, v, None, None, None, torch.tensor([5]), False, None, 0.0, 0.25))

    def test_autocast(self):
        """Inputs of several types, in the type that PyTorch's own attention would take."""
        q, k, v = self.inputs()
        dout = torch.randn(2, 4, 9, 16)
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(lambda a, b, c: sdpa(a, b, c.bfloat16(), is_causal=True), (q, k, v), dout)
            theirs = F.scaled_dot_product_attention(q, k, v.bfloat16(), is_causal=True)
        self.assertEqual(found[0].dtype, theirs.dtype)
        expected = gradients(lambda *x: sdpa(*(y.bfloat16() for y in x), is_causal=True), (q, k, v), dout)
        for a, b in zip(expected, found):
            self.assert_equal(a.float(), b.float())

    def test_transforms(self):
        """torch.func's grad, jacrev and vmap, within each other too: PyTorch's own gradients."""
        q, k, v = self.inputs()
        bias = torch.randn(9, 21)

        def loss(function, *x):
            return function(*x[:3], attn_mask=x[3] if len(x) > 3 else None).square().sum()

        many = torch.randn(3, *q.shape)
        for transform in (
                lambda f: torch.func.grad(lambda *x: loss(f, *x), (0, 1, 2, 3))(q, k, v, bias),
                lambda f: [torch.func.jacrev(lambda x: f(x[..., :4, :], k, v))(q)],
                lambda f: [torch.func.vmap(torch.func.grad(lambda x: loss(f, x, k, v)))(many)],
                lambda f: [torch.func.grad(lambda xs: torch.func.vmap(lambda x: loss(f, x, k, v))(xs).sum())(many)]):
            self.assert_close([x.double() for x in transform(F.scaled_dot_product_attention)], transform(sdpa), UNIT[torch.float32], 512)
        self.assert_refused(heed.Unsupported, "Heed has no gradients of gradients",
                            torch.func.grad(lambda x: torch.func.grad(lambda y: loss(sdpa, y, k, v))(x).sum()), q)

    def test_forward_mode(self):
        """A sentence: the tangent would be lost."""
        q, k, v = self.inputs()
        layer = heed.Layer({"wq": torch.eye(16), "wk": torch.eye(16), "wv": torch.eye(16), "wo": torch.eye(16)}, dim_in=16,
                           num_heads=2, num_kv_heads=2)
        for name, function, x in (("query", lambda x: sdpa(x, k, v), q), ("attn_mask", lambda x: sdpa(q, k, v, attn_mask=x), torch.ones(9, 21)),
                                  ("q", lambda x: heed.attention(x, x, x), q), ("x", layer, torch.ones(1, 3, 16))):
            for transform in (lambda f, y: torch.func.jvp(f, (y,), (y,)), lambda f, y: torch.func.jacfwd(f)(y)):
                self.assert_refused(heed.Unsupported, f"{name} has a tangent; Heed has gradients, no forward-mode", transform, function, x)
        self.assert_refused(heed.Unsupported, "an input has a tangent", torch.func.hessian(lambda x: sdpa(x, k, v).sum()), q)

    def test_eval_mode(self):
        """Modules whose parameters require gradients, outside of no_grad: the bits of a call under it."""
        project = torch.nn.Linear(16, 16)
        q, k, v = self.inputs()
        with torch.no_grad():
            expected = sdpa(project(q), k, v, is_causal=True)
        self.assert_equal(expected, sdpa(project(q), k, v, is_causal=True).detach())


class Training(GradientTest):
    def test_losses(self):
        """A small GPT for 50 steps with either attention: the same losses, within what float32 loses on the way."""
        ours, theirs = (train.losses(function, steps=50, context=32) for function in (sdpa, F.scaled_dot_product_attention))
        self.assertLess(ours[-1], 0.8 * ours[0])
        for a, b in zip(ours, theirs):
            self.assertLess(abs(a - b), 1e-3 * b)


if __name__ == "__main__":
    unittest.main()
