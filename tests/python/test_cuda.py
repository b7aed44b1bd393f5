"""heed.attention and heed.KVCache on arrays in device memory: of the CUDA driver that the process finds, emulated or not."""

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

    def test_layers_are_of_the_cpu(self):
        weights = {name: np.ones((8, 8), np.float32) for name in ("wq", "wk", "wv", "wo")}
        config = {"dim_in": 8, "num_heads": 2, "num_kv_heads": 2, "max_batch": 1, "max_q_len": 4}
        there = DeviceArray(np.ones((1, 4, 8), np.float32))
        kind, sentence = heed.InvalidArgument, " is on CUDA device 0; it must be on the CPU"
        layer = heed.Layer(weights, **config)
        self.assert_refused(kind, "x" + sentence, layer, there, out=np.empty((1, 4, 8), np.float32))
        self.assert_refused(kind, "out" + sentence, layer, np.ones((1, 4, 8), np.float32), out=there)
        self.assert_refused(kind, "wo" + sentence, heed.Layer, {**weights, "wo": DeviceArray(weights["wo"])}, **config)
        cross = heed.Layer(weights, **config, cross=True, max_kv_len=4)
        self.assert_refused(kind, "memory" + sentence, cross.prepare, cross.make_cache(1, 4), there)

    def test_refusals(self):
        q, k, v = (DeviceArray(x) for x in make_qkv(SHAPE))
        host, results, room = np.zeros((2, 21, 2, 64), np.float32), self.make_results(), workspace()
        kind = heed.InvalidArgument
        self.assert_refused(heed.Unsupported, "q is a DeviceArray on DLPack's device .2, 0.; results must then be given",
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
