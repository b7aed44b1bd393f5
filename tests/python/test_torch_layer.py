"""heed.Layer on PyTorch's modules and parameters, with gradients, compared with nn.MultiheadAttention; needs torch."""

import copy
import unittest

import torch
from torch import nn

from support import Test, heed

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
CONFIG = {"dim_in": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "causal": True}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def multihead(**options):
    torch.manual_seed(1)
    module = nn.MultiheadAttention(48, 6, **{"batch_first": True, **options})
    for bias in (module.in_proj_bias, module.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    return module


class Grouped(nn.Module):
    """A layer as models of transformers have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.q_proj, self.o_proj = nn.Linear(48, 48), nn.Linear(48, 48)
        self.k_proj, self.v_proj = nn.Linear(48, 16), nn.Linear(48, 16)

    NAMES = {**{f"w{n}": f"{n}_proj.weight" for n in "qkvo"}, **{f"b{n}": f"{n}_proj.bias" for n in "qkvo"}}

    def forward(self, x, bias=None, visible=None):
        q, k, v = (project(x).unflatten(-1, (-1, 8)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        logits = q @ k.repeat_interleave(3, 1).transpose(2, 3) / 8**0.5
        logits = logits if bias is None else logits + bias
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~(seen if visible is None else seen & visible), -torch.inf)
        return self.o_proj((logits.softmax(-1).nan_to_num(0) @ v.repeat_interleave(3, 1)).transpose(1, 2).flatten(2))


class LayerTest(Test):
    def assert_close(self, expected, found, unit=UNIT[torch.float32]):
        self.assertEqual(expected.shape, found.shape)
        self.assertLessEqual((expected.double() - found.double()).abs().max(), 64 * unit * max(expected.abs().max(), 1))


class Multihead(LayerTest):
    def test_self_attention(self):
        """Masks by the module's own convention; with and without bias, tokens first."""
        x, later = random(3, 7, 48), torch.ones(7, 7, dtype=torch.bool).triu(1)
        padding = torch.arange(7) >= torch.tensor([[7], [4], [6]])
        for options in ({}, {"bias": False}, {"batch_first": False}):
            with self.subTest(**options):
                module = multihead(**options)
                layer, exact = heed.Layer(module), copy.deepcopy(module).double()
                given = x.transpose(0, 1) if options.get("batch_first") is False else x
                for masks in ({}, {"attn_mask": later}, {"attn_mask": later, "key_padding_mask": padding}):
                    same = {"mask" if name == "attn_mask" else "key_padding": mask for name, mask in masks.items()}
                    wide = given.double()
                    self.assert_close(exact(wide, wide, wide, need_weights=False, **masks)[0], layer(given, **same).detach())
        added = random(18, 7, 7).unflatten(0, (3, 6))
        module, x = multihead(), random(3, 7, 48)
        self.assert_close(module(x, x, x, attn_mask=added.flatten(0, 1))[0], heed.Layer(module)(x, mask=added, mask_means="add"))

    def test_what_callers_have(self):
        """A float mask with bool padding, a mask for each sequence and head, one sequence, views: as the module takes them."""
        x, padding = random(3, 7, 48), torch.arange(7) >= torch.tensor([[7], [4], [6]])
        added, later = random(18, 7, 7, seed=3), torch.ones(7, 7, dtype=torch.bool).triu(1)
        for options in ({}, {"batch_first": False}):
            module = multihead(**options)
            layer = heed.Layer(module)
            turned = x if not options else x.transpose(0, 1)
            wide = added.masked_fill(padding.repeat_interleave(6, 0)[:, None], -torch.inf)
            self.assert_close(module(turned, turned, turned, attn_mask=wide)[0],
                              layer(turned, mask=added, key_padding=padding, mask_means="add"))
            self.assert_close(module(turned, turned, turned, attn_mask=later.expand(18, 7, 7))[0], layer(turned, mask=later.expand(18, 7, 7)))
            one = x[0].clone().requires_grad_()
            y = layer(one, mask=added[:6], key_padding=padding[1], mask_means="add")
            self.assert_close(module(one, one, one, attn_mask=wide[6:12] - added[6:12] + added[:6])[0], y)
            y.sum().backward()
            self.assertEqual(one.grad.shape, one.shape)
            with torch.no_grad():
                self.assertEqual(layer(one, out=torch.empty(7, 48)).shape, (7, 48))
        layer = heed.Layer(multihead())
        for view in (x[:, 2:3], x[:, ::2], x[..., :].transpose(0, 1).contiguous().transpose(0, 1)):
            self.assert_equal(layer(view.contiguous()).detach(), layer(view).detach())
        cross = heed.Layer(multihead(), cross=True)
        self.assert_equal(cross(x, x[:, 1:4].contiguous(), key_padding=padding[:, :3].contiguous()).detach(),
                          cross(x, x[:, 1:4], key_padding=padding[:, :3]).detach())
        cache, again = cross.make_cache(3, 5), cross.make_cache(3, 5)
        cross.prepare(cache, x[:, 1:4].contiguous())
        cross.prepare(again, x[:, 1:4])
        self.assert_equal(cache.read()[0], again.read()[0])
        parts = layer(x.requires_grad_()[:, 2:3]).sum()
        parts.backward()
        self.assertEqual(x.grad[:, 3:].abs().max(), 0)
        self.assertGreater(x.grad[:, 2].abs().min(), 0)
        self.assert_refused(heed.InvalidArgument, "mask has elements of torch.bool, and mask_means is 'add'", layer, x.detach(), mask=later,
                            mask_means="add")

    def test_cross_attention(self):
        for options in ({}, {"kdim": 20, "vdim": 20}):
            module = multihead(**options)
            layer = heed.Layer(module, cross=True) if not options else heed.Layer(module)
            x, context = random(3, 7, 48), random(3, 11, options.get("kdim", 48), seed=4)
            self.assert_close(module(x, context, context)[0], layer(x, context))

    def test_refusals(self):
        for kind, sentence, module in (
                (heed.Unsupported, "has bias_k; heed.Layer has no keys except", multihead(add_bias_kv=True)),
                (heed.InvalidArgument, "has elements of torch.float64; a layer's weights must be float32, float16 or bfloat16$",
                 multihead(dtype=torch.float64)),
                (heed.Unsupported, "has add_zero_attn", multihead(add_zero_attn=True)),
                (heed.Unsupported, "has kdim 20 and vdim 21; they must be equal", multihead(kdim=20, vdim=21)),
                (heed.InvalidArgument, "weights is a Linear; it must be a mapping of arrays or an nn.MultiheadAttention", nn.Linear(3, 3))):
            self.assert_refused(kind, sentence, heed.Layer, module)
        self.assert_refused(heed.InvalidArgument, "the module has no parameter 'q.weight'; it has", heed.Layer.from_module, Grouped(),
                            {"wq": "q.weight"}, **CONFIG)

    def test_gradients(self):
        """Of x and of every parameter, with padding; also where the projections are apart, and tokens first."""
        x, padding = random(3, 7, 48), torch.arange(7) >= torch.tensor([[7], [4], [6]])
        context = random(3, 7, 48, seed=5)
        for options, cross in (({}, False), ({"bias": False, "batch_first": False}, False), ({}, True)):
            module = multihead(**options)
            exact = copy.deepcopy(module).double()
            layer = heed.Layer(module, cross=cross)
            tensors = [y if options.get("batch_first", True) else y.transpose(0, 1) for y in (x, context)]
            ours = [y.clone().requires_grad_() for y in tensors]
            theirs = [y.double().requires_grad_() for y in tensors]
            dout = random(*tensors[0].shape, seed=6)
            keys = theirs[1] if cross else theirs[0]
            exact(theirs[0], keys, keys, key_padding_mask=padding, need_weights=False)[0].backward(dout.double())
            layer(*ours[:1 + cross], key_padding=padding).backward(dout)
            for a, b in zip(theirs[:1 + cross], ours):
                self.assert_close(a.grad, b.grad)
            for (name, a), (_, b) in zip(exact.named_parameters(), module.named_parameters()):
                with self.subTest(options=options, cross=cross, parameter=name):
                    self.assert_close(a.grad, b.grad)


class Parameters(LayerTest):
    def test_gradients(self):
        """x, bias and parameters of a layer with grouped heads, in each type: within its rounding of float64."""
        for dtype in UNIT:
            module = Grouped().to(dtype)
            exact, layer = copy.deepcopy(module).double(), heed.Layer.from_module(module, Grouped.NAMES, **CONFIG)
            x, bias, dout = random(2, 9, 48).to(dtype), random(1, 6, 9, 9, seed=1).to(dtype), random(2, 9, 48, seed=2).to(dtype)
            keep = random(2, 1, 9, 9, seed=3) < 0.7
            ours, theirs = ([y.clone().requires_grad_() for y in (x.to(kind), bias.to(kind))] for kind in (dtype, torch.float64))
            y = layer(ours[0], bias=ours[1], mask=keep)
            expected = exact(*theirs, keep)
            self.assert_close(expected.detach(), y.detach(), UNIT[dtype])
            y.backward(dout)
            expected.backward(dout.double())
            for a, b in zip((*theirs, *exact.parameters()), (*ours, *module.parameters())):
                self.assertEqual(b.grad.dtype, dtype)
                self.assert_close(a.grad, b.grad, UNIT[dtype])

    def test_dropout(self):
        module = Grouped()
        layer = heed.Layer.from_module(module, Grouped.NAMES, dropout_p=0.4, **CONFIG)
        x = random(2, 9, 48)
        one, other = ([layer(x, training=True, dropout_seed=seed).sum()] for seed in (5, 6))
        for result in (one, other):
            result += torch.autograd.grad(result[0], module.v_proj.weight)
        again = layer(x, training=True, dropout_seed=5).sum()
        self.assert_equal(one[1], torch.autograd.grad(again, module.v_proj.weight)[0])
        self.assertGreater((one[1] - other[1]).abs().max(), 1e-3)

    def test_training(self):
        """By an optimizer: the layer packs what it writes; the losses of the module itself."""
        losses = []
        for ours in (True, False):
            module = Grouped()
            layer = heed.Layer.from_module(module, Grouped.NAMES, **CONFIG) if ours else module
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
            losses.append([])
            for step in range(20):
                loss = (layer(random(4, 9, 48, seed=step)) - random(4, 9, 48, seed=step).flip(-1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        self.assertLess(losses[0][-1], 0.95 * losses[0][0])
        for a, b in zip(*losses):
            self.assertLess(abs(a - b), 1e-4 * b)

    def test_weights_that_change(self):
        module, other = Grouped(), Grouped()
        layer = heed.Layer.from_module(module, Grouped.NAMES, **CONFIG)
        given = heed.Layer({name: module.get_parameter(path) for name, path in Grouped.NAMES.items()}, **CONFIG)
        x = random(2, 9, 48)
        first = layer(x).detach()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.25)
        module.load_state_dict(other.state_dict())
        expected = heed.Layer.from_module(other, Grouped.NAMES, **CONFIG)(x).detach()
        self.assertFalse(torch.equal(first, expected))
        self.assert_equal(expected, layer(x).detach())
        self.assert_equal(expected, given(x).detach())
        module.q_proj.weight.data.mul_(2)  # past the version counter
        layer.refresh()
        self.assertFalse(torch.equal(expected, layer(x).detach()))

    def test_deterministic(self):
        results, threads = [], torch.get_num_threads()
        try:
            for count in (1, 2, 2, 1):
                torch.set_num_threads(count)
                module, x = Grouped(), random(2, 150, 48).requires_grad_()
                heed.Layer.from_module(module, Grouped.NAMES, **CONFIG)(x).square().sum().backward()
                results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
        finally:
            torch.set_num_threads(threads)
        for result in results[1:]:
            for a, b in zip(results[0], result):
                self.assert_equal(a, b)

    def test_eval_mode(self):
        """Outside of no_grad, with caches and past too: the bits of a call under it; backward says what has no gradients."""
        module = Grouped().eval()
        layer = heed.Layer.from_module(module, Grouped.NAMES, **CONFIG)
        x = random(2, 9, 48)
        with torch.no_grad():
            expected = layer(x)
        self.assert_equal(expected, layer(x).detach())
        cache, past, steps = layer.make_cache(2, 9, page_size=4), None, []
        for first in (0, 5, 6):
            tokens = x[:, first:{0: 5, 5: 6, 6: 9}[first]].contiguous()
            y = layer(tokens, cache=cache)
            z, past = layer(tokens, past=past, return_past=True)
            self.assertLess((y - z).abs().max(), 1e-5)
            steps.append(y.detach())
        self.assertIsInstance(past[0], torch.Tensor)
        self.assert_equal(cache.read()[0], past[0])
        self.assertLess((torch.cat(steps, 1) - expected).abs().max(), 1e-5)
        self.assert_refused(heed.Unsupported, "cache is given; gradients are of calls without one", y.sum().backward)
        y = layer(x.flatten(0, 1), cu_seqlens=[0, 9, 18])
        self.assert_refused(heed.Unsupported, "cu_seqlens is not NULL; heed_layer_backward serves padded batches", y.sum().backward)
        self.assert_refused(heed.InvalidArgument, "out is given while PyTorch records", layer, x, out=torch.empty_like(x))

    def test_types_of_caches(self):
        for dtype in UNIT:
            layer = heed.Layer.from_module(Grouped().to(dtype), Grouped.NAMES, **CONFIG)
            cache, again = layer.make_cache(2, 9, page_size=4), layer.make_cache(2, 9)
            layer(random(2, 9, 48).to(dtype), cache=cache, q_lens=[9, 3])
            k, v = cache.read()
            self.assertEqual((k.dtype, tuple(k.shape)), (dtype, (2, 9, 2, 8)))
            again.append(k, v, cache.kv_lens)
            self.assertTrue(torch.equal(k, again.read()[0]) and torch.equal(v, again.read()[1]))

    def test_backward(self):
        """Layer.backward: what PyTorch would record."""
        module = Grouped()
        layer = heed.Layer.from_module(module, Grouped.NAMES, **CONFIG)
        x, dy = random(2, 9, 48).requires_grad_(), random(2, 9, 48, seed=3)
        layer(x).backward(dy)
        with torch.no_grad():
            found = layer.backward(dy, x)
        self.assert_equal(x.grad, found["x"])
        for name, path in Grouped.NAMES.items():
            self.assert_equal(module.get_parameter(path).grad, found[name])


if __name__ == "__main__":
    unittest.main()
