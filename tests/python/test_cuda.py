"""The package on arrays in device memory: of the CUDA driver that the process finds, emulated or not."""

import re
import unittest

import numpy as np

from device_array import DeviceArray
from support import Shape, Test, heed, make_qkv, oracle

SHAPE = Shape(batch=2, q_len=9, kv_len=21, head_dim=64, head_dim_v=64)


def workspace(size=1 << 20):
    return DeviceArray(np.zeros(size, np.uint8))


class Cuda(Test):
    @classmethod
    def setUpClass(cls):
        DeviceArray.start()

    def make_results(self, shape=SHAPE):
        return {"out": DeviceArray(np.full((shape.batch, shape.q_len, shape.num_heads, shape.head_dim_v), np.nan, np.float32)),
                "lse": DeviceArray(np.full((shape.batch, shape.num_heads, shape.q_len), np.nan, np.float32))}

    def assert_attention(self, problem, options, **arrays):
        """On the device against the oracle; `arrays` go there too."""
        q, k, v = make_qkv(SHAPE)
        results = self.make_results()
        there = {name: DeviceArray(array) for name, array in arrays.items()}
        out, lse = heed.attention(*(DeviceArray(x) for x in (q, k, v)), return_lse=True, workspace=workspace(), **results,
                                  **options, **there)
        self.assertIs(out, results["out"])
        expected = oracle.attend(problem, q, k, v, **arrays)
        self.assert_near(expected, out.numpy(), lse.numpy())

    def test_attention(self):
        self.assert_attention({"causal": True}, {"causal": True})
        self.assert_attention({"softcap": 2}, {"softcap": 2.0}, bias=np.linspace(-3, 3, 21, dtype=np.float32)[None],
                              sink=np.arange(4, dtype=np.float32))

    def test_metadata_on_either_side(self):
        lens = np.array([5, 21], np.int32)
        self.assert_attention({}, {}, kv_lens=lens)
        q, k, v = make_qkv(SHAPE)
        expected = oracle.attend({}, q, k, v, kv_lens=lens)
        results = self.make_results()
        heed.attention(*(DeviceArray(x) for x in (q, k, v)), return_lse=True, kv_lens=lens, workspace=workspace(), **results)
        self.assert_near(expected, *(results[name].numpy() for name in ("out", "lse")))

    def test_device_status(self):
        status = DeviceArray(np.zeros(1, np.int32))
        arrays = [DeviceArray(x) for x in make_qkv(SHAPE)]
        heed.attention(*arrays, kv_lens=DeviceArray(np.array([5, 22], np.int32)), device_status=status, workspace=workspace(),
                       **self.make_results())
        self.assertEqual(status.numpy()[0], 1 << 3 | 3)  # sequence 1, kv_lens

    def test_packed_sequences(self):
        q, k, v = (x[0] for x in make_qkv(SHAPE))
        sums, sums_kv = np.array([0, 4, 9], np.int32), np.array([0, 20, 21], np.int32)
        out, room = DeviceArray(np.zeros_like(q)), workspace()
        arrays = [DeviceArray(x) for x in (q, k, v)]
        there = {"cu_seqlens_q": DeviceArray(sums), "cu_seqlens_kv": DeviceArray(sums_kv)}
        self.assert_refused(heed.InvalidArgument, "max_q_len is missing; it must be given, since cu_seqlens_q is on the device",
                            heed.attention, *arrays, out=out, workspace=room, **there)
        heed.attention(*arrays, out=out, workspace=room, max_q_len=5, max_kv_len=20, **there)
        found = out.numpy()
        for b in range(2):
            expected = oracle.attend({}, q[None, sums[b]:sums[b + 1]], k[None, sums_kv[b]:sums_kv[b + 1]],
                                     v[None, sums_kv[b]:sums_kv[b + 1]])
            self.assert_near(expected, found[None, sums[b]:sums[b + 1]])

    def test_cache(self):
        """Appends and copies in device memory leave there what they leave on the host."""
        random = np.random.default_rng(1)
        for page_size, dtype in ((None, "float32"), (8, "float16"), (8, "int8")):
            host, there = (heed.KVCache(3, 40, 2, 16, dtype=dtype, page_size=page_size) for _ in range(2))
            for name in ("k", "v", "k_scale", "v_scale"):
                array = getattr(host, name)
                if array is not None:
                    array[:] = 0
                    setattr(there, name, DeviceArray(array))
            for lens in ([11, 4, 0], [1, 20, 9]):
                new = [random.standard_normal((3, 20, 2, 16)).astype("f4" if dtype == "float32" else "f2") for _ in "kv"]
                host.append(*new, lens)
                there.append(*(DeviceArray(x) for x in new), lens)
                for cache in (host, there):
                    cache.fork(0, 2)
            self.assert_equal(host.kv_lens, there.kv_lens)
            for name in ("k", "v", "k_scale", "v_scale"):
                if getattr(host, name) is not None:
                    self.assert_equal(np.ascontiguousarray(getattr(host, name)), getattr(there, name).numpy())

    def make_layers(self, **options):
        """The same layer on the host and on the device."""
        random = np.random.default_rng(2)
        weights = {name: random.standard_normal((32, 32), dtype=np.float32) / 6 for name in ("wq", "wk", "wv", "wo")}
        config = {"dim_in": 32, "num_heads": 2, "num_kv_heads": 2, "max_batch": 2, "max_q_len": 9, "max_kv_len": 16, **options}
        return [heed.Layer(weights, **config, device=device) for device in ("cpu", "cuda")]

    def assert_same(self, expected, found):
        """But for the last bits of sums in another order."""
        self.assertEqual(found.shape, expected.shape)
        self.assertLess(np.abs(found - expected).max(), 2.0**-18 * np.abs(expected).max())

    def test_layer_with_a_cache(self):
        host, there = self.make_layers(causal=True)
        random = np.random.default_rng(3)
        caches = [layer.make_cache(2, 16, page_size=4) for layer in (host, there)]
        for q_len, lens in ((9, [9, 4]), (1, [1, 0])):
            x = random.standard_normal((2, q_len, 32), dtype=np.float32)
            y = DeviceArray(np.full_like(x, np.nan))
            expected = host(x, cache=caches[0], q_lens=lens)
            self.assertIs(there(DeviceArray(x), cache=caches[1], q_lens=lens, out=y, workspace=workspace()), y)
            self.assert_same(expected, y.numpy())
            for cache in caches:
                cache.fork(0, 1)
            self.assertEqual(caches[0].kv_lens, caches[1].kv_lens)

    def test_layer_with_mask_padding_and_bias(self):
        host, there = self.make_layers()
        random = np.random.default_rng(4)
        x = random.standard_normal((2, 9, 32), dtype=np.float32)
        joined = {"mask": (random.random((1, 2, 9, 9)) < 0.8).astype(np.uint8),
                  "bias": random.standard_normal((1, 1, 9, 9), dtype=np.float32),
                  "key_padding": np.array([[1] * 9, [1] * 5 + [0] * 4], np.uint8)}
        y, probs = DeviceArray(np.full_like(x, np.nan)), DeviceArray(np.full((2, 2, 9, 9), np.nan, np.float32))
        expected_probs = np.empty((2, 2, 9, 9), np.float32)
        expected = host(x, **joined, probs=expected_probs)
        arguments = {"out": y, "probs": probs, **{name: DeviceArray(array) for name, array in joined.items()}}
        with self.assertRaisesRegex(heed.InvalidArgument, "workspace is missing") as missing:
            there(DeviceArray(x), **arguments)
        needed = int(re.search("it must be ([0-9]+) bytes", str(missing.exception))[1])
        self.assert_refused(heed.WorkspaceTooSmall, "workspace_bytes is", there, DeviceArray(x), **arguments,
                            workspace=workspace(needed - 128))
        there(DeviceArray(x), **arguments, workspace=workspace(needed))
        self.assert_same(expected, y.numpy())
        self.assert_same(expected_probs, probs.numpy())

    def test_cross_attention(self):
        host, there = self.make_layers(cross=True)
        random = np.random.default_rng(5)
        x, context = (random.standard_normal((2, length, 32), dtype=np.float32) for length in (3, 16))
        caches = [layer.make_cache(2, 16) for layer in (host, there)]
        host.prepare(caches[0], context, [16, 7])
        there.prepare(caches[1], DeviceArray(context), [16, 7], workspace=workspace())
        y = DeviceArray(np.full_like(x, np.nan))
        there(DeviceArray(x), cache=caches[1], out=y, workspace=workspace())
        self.assert_same(host(x, cache=caches[0]), y.numpy())

    def test_layers_stay_on_their_device(self):
        host, cuda = self.make_layers(max_batch=1)
        x, kind, room = np.ones((1, 4, 32), np.float32), heed.InvalidArgument, workspace()
        there = DeviceArray(x)
        sentence = " is on CUDA device 0; it must be on the CPU"
        self.assert_refused(kind, "x" + sentence, host, there, out=there)
        self.assert_refused(kind, "out" + sentence, host, x, out=there)
        self.assert_refused(kind, "x is on the CPU; it must be on CUDA", cuda, x)
        self.assert_refused(kind, "out is on the CPU; it must be on CUDA device 0, as x", cuda, there, out=x, workspace=room)
        self.assert_refused(kind, "workspace is missing; .* it must be [0-9]+ bytes there", cuda, there, out=DeviceArray(x))
        self.assert_refused(kind, "q_lens" + sentence, cuda, there, out=DeviceArray(x), workspace=room,
                            q_lens=DeviceArray(np.ones(1, np.int32)))
        self.assert_refused(kind, "device is 'gpu'; it must be one of 'cpu', 'cuda'", heed.Layer, {"wq": x[0]}, device="gpu")
        self.assert_refused(kind, "wq" + sentence, heed.Layer, {name: there for name in ("wq", "wk", "wv", "wo")}, dim_in=32)
        cross, _ = self.make_layers(cross=True)
        self.assert_refused(kind, "context" + sentence, cross.prepare, cross.make_cache(1, 4), there)

    def test_operations(self):
        """As on the host, except for the last bits."""
        random = np.random.default_rng(6)
        x, cos, sin = (random.standard_normal(shape, dtype=np.float32) for shape in ((2, 7, 3, 16), (9, 8), (9, 8)))
        places, out = random.integers(0, 9, (2, 7)), DeviceArray(np.full_like(x, np.nan))
        self.assertIs(heed.rope(DeviceArray(x), DeviceArray(cos), DeviceArray(sin), places, out=out), out)
        self.assert_same(heed.rope(x, cos, sin, places), out.numpy())

        states = [random.standard_normal((2, 7, 3, 16), dtype=np.float32) for _ in range(3)]
        lses, sink = [random.standard_normal((2, 3, 7), dtype=np.float32) for _ in range(3)], np.ones(3, np.float32)
        lse = DeviceArray(np.full_like(lses[0], np.nan))
        heed.merge_states([DeviceArray(state) for state in states], [DeviceArray(each) for each in lses], DeviceArray(sink),
                          out=out, lse=lse)
        for expected, found in zip(heed.merge_states(states, lses, sink, return_lse=True), (out, lse)):
            self.assert_same(expected, found.numpy())

        rows, weight, bias = (random.standard_normal(shape, dtype=np.float32) for shape in ((5, 24), (40, 24), (40,)))
        y = DeviceArray(np.full((5, 40), np.nan, np.float32))
        heed.linear(DeviceArray(rows), heed.LinearWeights(DeviceArray(weight), DeviceArray(bias)), out=y)
        self.assert_same(heed.linear(rows, heed.LinearWeights(weight, bias)), y.numpy())
        self.assert_refused(heed.InvalidArgument, "x is on the CPU; it must be on CUDA device 0, as weight", heed.linear, rows,
                            heed.LinearWeights(DeviceArray(weight)))

        q, k, _ = make_qkv(SHAPE)
        probs = DeviceArray(np.full((2, 4, 9, 21), np.nan, np.float32))
        heed.attention_probs(DeviceArray(q), DeviceArray(k), causal=True, out=probs, workspace=workspace())
        self.assert_same(heed.attention_probs(q, k, causal=True), probs.numpy())

    def test_refusals(self):
        q, k, v = (DeviceArray(x) for x in make_qkv(SHAPE))
        host, results, room = np.zeros((2, 21, 2, 64), np.float32), self.make_results(), workspace()
        kind = heed.InvalidArgument
        self.assert_refused(heed.Unsupported, "no arrays like a DeviceArray on DLPack's device .2, 0. are made here; results must be given",
                            heed.attention, q, k, v, workspace=room)
        self.assert_refused(kind, "workspace is missing; .* it must be [0-9]+ bytes there", heed.attention, q, k, v, **results)
        self.assert_refused(heed.WorkspaceTooSmall, "workspace_bytes is 16", heed.attention, q, k, v, kv_lens=[3, 4],
                            workspace=workspace(16), **results)
        self.assert_refused(kind, "k is on the CPU; it must be on CUDA device 0, as q", heed.attention, q, host, v,
                            workspace=room, **results)
        self.assert_refused(kind, "q_offsets is on CUDA device 0; it must be on the CPU, as kv_lens", heed.attention, q, k, v,
                            q_offsets=DeviceArray(np.zeros(2, np.int32)), kv_lens=[1, 2], workspace=room, **results)


if __name__ == "__main__":
    unittest.main()
