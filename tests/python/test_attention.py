"""heed.attention on NumPy's arrays: results against the oracle, strides, outputs, threads."""

import ctypes
import itertools
import sys
import threading
import unittest

import numpy as np

from support import Shape, StoredCase, Test, dense_results, from_bits, headers, heed, make_qkv, oracle, typed

DTYPES = "f32", "f16", "bf16"
STORAGES = ("dense", "contiguous"), ("dense", "paged"), ("varlen", "varlen"), ("varlen", "contiguous"), ("varlen", "paged")
SHAPE = Shape(batch=3, q_len=7, kv_len=37)
FLAGS = [entry.name for entry in headers.entries("HEED_LOGIT_FIELDS") if entry.initial == "false"]
METADATA = "cu_seqlens_q", "cu_seqlens_kv", "kv_lens", "page_table", "k_scale", "v_scale"


class Forms(Test):
    def test_types_and_storages(self):
        for dtype, kv_dtype, (q_storage, kv_storage) in itertools.product(DTYPES, (None, "i8"), STORAGES):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype, q_storage=q_storage, kv_storage=kv_storage):
                problem = {"dtype": dtype, "kv_dtype": kv_dtype, "causal": True, "position": "bottom_right",
                           "q_storage": q_storage, "kv_storage": kv_storage}
                case = StoredCase(SHAPE, problem, [7, 0, 3] if q_storage == "varlen" else None, [21, 37, 6])
                q, k, v = (from_bits(case.files[name]) for name in "qkv")
                metadata = {name: case.files[name] for name in METADATA if name in case.files}
                out, lse = heed.attention(q, k, v, causal=True, position="bottom_right", return_lse=True, **metadata)
                self.assertEqual(out.dtype, q.dtype)
                expected = oracle.attend(problem, case.q, case.k, case.v, q_lens=case.q_lens, kv_lens=case.kv_lens)
                self.assert_near(expected, *dense_results(case, out, lse))

    def assert_options(self, options, problem=None, **arrays):
        """Against the oracle, and that the options change the result."""
        q, k, v = make_qkv(SHAPE)
        out, lse = heed.attention(q, k, v, return_lse=True, **options, **arrays)
        expected = oracle.attend(options if problem is None else problem, q, k, v, **arrays)
        self.assert_near(expected, out, lse)
        plain = heed.attention(q, k, v)
        self.assertTrue((np.abs(plain - expected.out) > expected.out_bound).any())

    def test_options(self):
        random = np.random.default_rng(3)
        full = SHAPE.full()
        bias = random.standard_normal(full, dtype=np.float32)
        mask = random.random(full) < 0.7
        slopes = random.standard_normal(SHAPE.num_heads, dtype=np.float32)
        self.assert_options({"causal": True})
        self.assert_options({"window_left": 3, "window_right": 2})
        self.assert_options({"scale": -0.5})
        self.assert_options({"scale": 0})
        self.assert_options({"softcap": 0.5})
        self.assert_options({}, bias=bias)
        self.assert_options({}, bias=bias[:1, :, :, :1] * np.float32(1) + bias[0, 0])
        self.assert_options({}, mask=mask)
        self.assert_options({}, mask=mask[0, 0])
        self.assert_options({}, mask=np.broadcast_to(mask[:, :1, :1], full))
        self.assert_options({}, alibi_slopes=slopes)
        for flag in FLAGS:
            self.assert_options({flag: True, "position": "bottom_right"}, mask=mask[:1].astype(np.uint8), alibi_slopes=slopes)
        self.assert_options({}, sink=slopes)
        self.assert_options({}, kv_lens=[3, 0, 37])
        self.assert_options({"causal": True, "position": "explicit"}, q_offsets=[4, -3, 40])
        self.assert_options({"dropout_p": 0.3, "dropout_seed": 2**63, "dropout_offset": 5},
                            {"dropout": {"p": 0.3, "seed": 2**63, "offset": 5}})

    def test_options_that_change_no_result(self):
        q, k, v = make_qkv(SHAPE)
        expected = oracle.attend({}, q, k, v)
        for options in ({"max_threads": 1}, {"batch_invariant": True}, {"num_splits": 2}, {"mask": None, "scale": None},
                        {"causal": np.False_, "window_left": np.int64(-1), "softcap": np.float32(0)}):
            self.assert_near(expected, heed.attention(q, k, v, **options))

    def test_lengths_of_any_integers(self):
        q, k, v = make_qkv(SHAPE)
        expected = heed.attention(q, k, v, kv_lens=np.array([3, 5, 37], np.int32))
        for lens in ([3, 5, 37], np.array([3, 5, 37], np.uint8), np.array([3, 9, 5, 9, 37])[::2]):
            self.assert_equal(expected, heed.attention(q, k, v, kv_lens=lens))

    def test_strides(self):
        q, k, v = make_qkv(SHAPE)
        expected = heed.attention(q, k, v)
        packed = np.concatenate([k.repeat(2, 2), v.repeat(2, 2)], -1)
        for views in ((q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v),
                      (q, packed[:, :, ::2, :32], packed[:, :, ::2, 32:]),
                      (q, np.asfortranarray(k.transpose(3, 0, 2, 1)).transpose(1, 3, 2, 0), v)):
            self.assert_equal(expected, heed.attention(*views))
        alone = heed.attention(q, np.repeat(k[:, :, :1], 4, 2), v.repeat(2, 2))
        self.assert_equal(alone, heed.attention(q, np.broadcast_to(k[:, :, :1], (3, 37, 4, 32)), v.repeat(2, 2)))

    def test_given_outputs(self):
        q, k, v = make_qkv(SHAPE)
        expected, expected_lse = heed.attention(q, k, v, return_lse=True)
        room, lse_room = np.full((3, 4, 7, 64), np.nan, np.float32), np.full((3, 4, 14), np.nan, np.float32)
        out, lse = room[..., 32:].transpose(0, 2, 1, 3), lse_room[:, :, ::2]
        results = heed.attention(q, k, v, out=out, lse=lse, return_lse=True)
        self.assertIs(results[0], out)
        self.assertIs(results[1], lse)
        self.assert_equal(expected, out)
        self.assert_equal(expected_lse, lse)
        self.assertTrue(np.isnan(room[..., :32]).all() and np.isnan(lse_room[:, :, 1::2]).all())

    def test_empty(self):
        for batch, q_len, kv_len in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
            shape = Shape(batch=batch, q_len=q_len, kv_len=kv_len)
            out, lse = heed.attention(*make_qkv(shape), return_lse=True)
            self.assert_equal(np.zeros((batch, q_len, 4, 32), np.float32), out)
            self.assert_equal(np.full((batch, 4, q_len), -np.inf, np.float32), lse)

    def test_read_only_inputs(self):
        q, k, v = make_qkv(SHAPE)
        expected = heed.attention(q, k, v)
        for array in (q, k, v):
            array.flags.writeable = False
        self.assert_equal(expected, heed.attention(q, k, v))

    def test_float32_bias_beside_bfloat16(self):
        q, k, v = (typed(array, "bf16") for array in make_qkv(SHAPE))
        bias = np.linspace(-3, 3, 37, dtype=np.float32)[None]
        expected = oracle.attend({"dtype": "bf16"}, q, k, v, bias=bias)
        self.assert_near(expected, heed.attention(q, k, v, bias=bias))

    def test_more_problems_than_plans_are_kept(self):
        q, k, v = make_qkv(SHAPE)
        expected = [heed.attention(q, k, v, window_left=n % 40, num_splits=n // 40, causal=True) for n in range(3000)]
        for n in (0, 2999, 7, *range(2000, 2050)):
            self.assert_equal(expected[n], heed.attention(q, k, v, window_left=n % 40, num_splits=n // 40, causal=True))

    def test_no_array_is_kept(self):
        q, k, v = make_qkv(SHAPE)
        bias = np.zeros((7, 37), np.float32)
        arrays = [q, k, v, bias, typed(q, "bf16")]
        before = [sys.getrefcount(array) for array in arrays]
        for _ in range(3):
            heed.attention(q, k, v, bias=bias)
            with self.assertRaises(heed.InvalidArgument):
                heed.attention(arrays[-1], k, v, bias=bias)
        self.assertEqual([sys.getrefcount(array) for array in arrays], before)

    def test_threads(self):
        """Many threads at once, on shapes of their own: the bits of a single one."""
        cases = [make_qkv(Shape(q_len=n, kv_len=40 * n), n) for n in range(1, 9)]
        expected = [heed.attention(*case, causal=True) for case in cases]
        results = [[] for _ in cases]

        def work(i):
            for _ in range(30):
                results[i].append(heed.attention(*cases[i], causal=True))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, outs in enumerate(results):
            self.assertEqual(len(outs), 30)
            for out in outs:
                self.assert_equal(expected[i], out)

    def test_the_interpreter_runs_beside_a_call(self):
        q, k, v = make_qkv(Shape(batch=1, num_heads=8, q_len=2048, kv_len=4096, head_dim=64, head_dim_v=64))
        done, steps = threading.Event(), 0

        def compute():
            heed.attention(q, k, v, max_threads=1)
            done.set()

        thread = threading.Thread(target=compute)
        thread.start()
        while not done.wait(1e-4):
            steps += 1
        thread.join()
        self.assertGreater(steps, 10)


def in_pages(x, table, num_pages, page_size):
    """Rows [batch, len, heads, dim] of whole pages in a pool, NaN elsewhere, whose rows are three elements longer."""
    pages = np.full((num_pages, page_size, x.shape[2], x.shape[3] + 3), np.nan, np.float32).astype(x.dtype)[..., :-3]
    pages[table] = x.reshape(*table.shape, page_size, *x.shape[2:])
    return pages


class LargeKeys(Test):
    """Of 4 KiB and more, 8 MiB in all: plans read whole keys where heads are neighbours and keys are as many, on AVX-512 with another
    kernel."""

    def test_layouts_and_batches_give_the_same_bits(self):
        for group in 1, 4:
            q, k, v = make_qkv(Shape(batch=2, num_heads=16 * group, num_kv_heads=16, q_len=1, kv_len=300, head_dim=128, head_dim_v=128))
            expected = heed.attention(q, k, v)
            outside = (np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v))
            with self.subTest(group):
                np.testing.assert_array_equal(heed.attention(q, *outside), expected)
                np.testing.assert_array_equal(heed.attention(q[:1], k[:1], v[:1]), expected[:1])

    def test_pages_give_the_same_bits(self):
        for dtype, group in itertools.product(DTYPES, (1, 4, 8, 16)):
            shape = Shape(batch=2, num_heads=16 * group, num_kv_heads=16, q_len=1, kv_len=608, head_dim=128, head_dim_v=128)
            q, k, v = (typed(x, dtype) for x in make_qkv(shape))
            table = np.random.default_rng(3).permutation(76).astype(np.int32).reshape(2, 38)
            pages = [in_pages(x, table, 76, 16) for x in (k, v)]
            lens = np.full(2, 608, np.int32)
            with self.subTest(dtype=dtype, group=group):
                np.testing.assert_array_equal(heed.attention(q, *pages, page_table=table, kv_lens=lens), heed.attention(q, k, v))


class PagesOfPrefill(Test):
    """Kernels of floats that know no pages read copies of heads."""

    def test_rows_of_keys_and_pages_give_the_same(self):
        random = np.random.default_rng(5)
        options = {}, {"causal": True, "position": "bottom_right"}, {"window_left": 40, "window_right": 3, "position": "bottom_right"}
        sizes = (64, 64, 1, 16, 2), (96, 96, 4, 1, 1), (128, 128, 2, 24, 3), (192, 128, 2, 8, 2), (72, 40, 3, 512, 2)
        for head_dim, head_dim_v, group, page_size, threads in sizes:
            kv_lens = np.array([301, 0, 77, 120], np.int32)
            shape = Shape(batch=4, num_heads=2 * group, num_kv_heads=2, q_len=100, kv_len=301, head_dim=head_dim, head_dim_v=head_dim_v)
            q, k, v = make_qkv(shape)
            most = -(-301 // page_size)
            table = random.permutation(4 * most + 3)[: 4 * most].astype(np.int32).reshape(4, most)
            pages = []
            for x in k, v:
                padded = np.full((4, most * page_size, 2, x.shape[-1]), np.nan, np.float32)
                padded[:, :301] = x
                for row, length in zip(padded, kv_lens):
                    row[length:] = np.nan
                pages.append(in_pages(padded, table, 4 * most + 3, page_size))
            table[1] = -1  # of no keys
            for option in options:
                with self.subTest(head_dim=head_dim, page_size=page_size, **option):
                    in_rows = heed.attention(q, k, v, kv_lens=kv_lens, **option)
                    found = heed.attention(q, *pages, page_table=table, kv_lens=kv_lens, max_threads=threads, **option)
                    np.testing.assert_array_equal(found, in_rows)


class LoneKeys(Test):
    def test_leave_the_bits_of_their_values(self):
        q, k = np.zeros((1, 5000, 1, 64), np.float32), np.zeros((1, 1, 1, 64), np.float32)
        q[0, :, 0, 0] = np.linspace(-5000, 5000, 5000)  # the logits
        k[..., 0] = 1
        v = np.random.default_rng(1).standard_normal((1, 1, 1, 64), np.float32)
        np.testing.assert_array_equal(heed.attention(q, k, v, scale=1.0), np.broadcast_to(v, q.shape))


class RoundingModes(Test):
    MODES = 0x400, 0x800, 0xC00  # down, up, to zero: fenv.h of x86

    def test_give_the_same_bits(self):
        arrays = make_qkv(SHAPE)
        options = {"softcap": 0.7, "scale": 0.3, "dropout_p": 0.1, "temperature_growth": 0.2, "temperature_interval": 3}
        expected = heed.attention(*arrays, **options)
        environment = ctypes.CDLL(None)
        for mode in self.MODES:
            with self.subTest(mode):
                environment.fesetround(mode)
                try:
                    out = heed.attention(*arrays, **options)
                    kept = environment.fegetround()
                finally:
                    environment.fesetround(0)
                self.assertEqual(kept, mode)
                np.testing.assert_array_equal(out, expected)


class Explain(Test):
    def test_names_the_kernel(self):
        text = heed.explain(*make_qkv(SHAPE), causal=True)
        self.assertRegex(text, r"^attention_(prefill|decode)_f32_\S+: ")
        self.assertIn("candidates:", text)

    def test_kernels(self):
        kernels = heed.kernels()
        self.assertGreater(len(kernels), 0)
        self.assertEqual(len({kernel["name"] for kernel in kernels}), len(kernels))
        for kernel in kernels:
            self.assertTrue(kernel["name"].startswith(f"attention_{kernel['phase']}_"), kernel)
            self.assertTrue(kernel["name"].endswith((kernel["isa"], kernel["schedule"])), kernel)
            self.assertEqual(kernel["supported"], kernel["unsupported_reason"] == "")
            self.assertEqual(kernel["score_mod"], "")
            self.assertGreater(kernel["code_bytes"], 1000)


if __name__ == "__main__":
    unittest.main()
