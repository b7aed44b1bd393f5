#!/usr/bin/env python3
"""Every dtype, storage and form of scores through `heed run`, against the oracle, and through `heed check`."""

import itertools
import unittest

import numpy as np

import oracle
from case_file import CliTest, Shape, main
from stored_case import StoredCase, decode, encode

DTYPES = "f32", "f16", "bf16"
STORAGES = ("dense", "contiguous"), ("dense", "paged"), ("varlen", "varlen"), ("varlen", "contiguous"), ("varlen", "paged")
SHAPE = Shape(batch=3, q_len=7, kv_len=37)
Q_LENS, KV_LENS = [7, 0, 3], [21, 37, 6]


def with_storage(problem, q_storage, kv_storage):
    return {**problem, "q_storage": q_storage, "kv_storage": kv_storage}


class Forms(CliTest):
    def assert_case(self, case, **arrays):
        """Runs and checks the case with the other arrays: each element of out and lse."""
        self.write_afresh(case.problem, **case.files, **arrays)
        done = self.call("run", self.case, "--threads", 2)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.outputs(), ["case.out.safetensors"])
        if "bias" in arrays and arrays["bias"].dtype == np.uint16:
            arrays["bias"] = decode(arrays["bias"], "bf16")
        expected = oracle.attend(case.problem, case.q, case.k, case.v, q_lens=case.q_lens, kv_lens=case.kv_lens,
                                 **arrays)
        stored_out, stored_lse = self.results()
        self.assertEqual(stored_out.dtype, case.files["q"].dtype)
        out, lse = case.as_the_oracle(stored_out, stored_lse)
        empty = np.isneginf(expected.lse)
        self.assertTrue(np.array_equal(np.isneginf(lse), empty))
        self.assertLessEqual((np.abs(out - expected.out) - expected.out_bound).max(initial=0), 0)
        self.assertTrue((np.abs(lse[~empty] - expected.lse[~empty]) <= expected.lse_bound[~empty]).all())
        done = self.call("check", self.case)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("verdict  good", done.stdout)
        return expected

    def make_case(self, problem, q_storage="dense", kv_storage="contiguous", shape=SHAPE, **options):
        q_lens = Q_LENS if q_storage == "varlen" else None
        return StoredCase(shape, with_storage(problem, q_storage, kv_storage), q_lens, KV_LENS, **options)

    def test_types_and_storages(self):
        for dtype, kv_dtype, storage in itertools.product(DTYPES, (None, "i8"), STORAGES):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype, storage=storage):
                problem = {"dtype": dtype, "kv_dtype": kv_dtype, "causal": True, "position": "bottom_right"}
                self.assert_case(self.make_case(problem, *storage))

    def test_decode(self):
        shape = Shape(batch=3, q_len=1, kv_len=600, num_heads=8, head_dim=64, head_dim_v=64)
        for dtype, kv_dtype, kv_storage in itertools.product(DTYPES, (None, "i8"), ("contiguous", "paged")):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype, kv_storage=kv_storage):
                problem = with_storage({"dtype": dtype, "kv_dtype": kv_dtype, "num_splits": 3}, "dense", kv_storage)
                self.assert_case(StoredCase(shape, problem, None, [600, 0, 333], page_size=16))

    def test_layouts(self):
        layouts = {"q": "hbsd", "k": "bhsd", "v": "sbhd", "out": "shbd"}
        for kv_dtype, storage in itertools.product((None, "i8"), STORAGES):
            with self.subTest(kv_dtype=kv_dtype, storage=storage):
                self.assert_case(self.make_case({"dtype": "f16", "kv_dtype": kv_dtype, "layout": layouts}, *storage))

    def test_named_max_q_len(self):
        for q_len, dropout in (7, 0), (40, 0), (40, 0.3):
            with self.subTest(q_len=q_len, dropout=dropout):
                problem = {"max_q_len": q_len, "dropout": {"p": dropout, "seed": 3}}
                self.assert_case(self.make_case(problem, "varlen", "varlen", Shape(batch=3, q_len=q_len)))

    def test_softcap_and_sink(self):
        sink = np.array([0.5, -np.inf, 3, -2], np.float32)
        for dtype, storage in itertools.product(DTYPES, STORAGES):
            with self.subTest(dtype=dtype, storage=storage):
                self.assert_case(self.make_case({"dtype": dtype, "softcap": 1.5, "window_left": 4}, *storage), sink=sink)

    def test_sink_alone(self):
        case = StoredCase(SHAPE, {}, None, [0, 37, 0])
        expected = self.assert_case(case, sink=np.arange(4, dtype=np.float32))
        self.assertEqual(expected.lse[0, :, 0].tolist(), [0, 1, 2, 3])

    def test_alibi(self):
        slopes = np.array([0.5, 0.25, -0.1, 0], np.float32)
        for symmetric, position, storage in itertools.product((False, True), ("top_left", "bottom_right"), STORAGES):
            with self.subTest(symmetric=symmetric, position=position, storage=storage):
                problem = {"alibi_symmetric": symmetric, "position": position}
                self.assert_case(self.make_case(problem, *storage), alibi_slopes=slopes)

    def test_q_offsets(self):
        for storage in STORAGES:
            with self.subTest(storage):
                self.assert_case(self.make_case({"position": "explicit", "causal": True, "window_left": 9}, *storage),
                                 q_offsets=np.array([-3, 5, 30], np.int32), alibi_slopes=np.ones(4, np.float32))

    def test_mask_and_bias(self):
        for dtype, kv_dtype, storage in itertools.product(DTYPES, (None, "i8"), STORAGES):
            case = self.make_case({"dtype": dtype, "kv_dtype": kv_dtype}, *storage)
            for shape in case.full, (1, 4, 1, case.max_kv_len), (3, 1, 7, 1):
                with self.subTest(dtype=dtype, kv_dtype=kv_dtype, storage=storage, shape=shape):
                    mask, bias = case.random.random(case.full) < 0.7, case.normal(*shape)
                    bias.flat[::11] = -np.inf
                    self.assert_case(case, mask=mask, bias=encode(bias, dtype))
        self.assert_case(self.make_case({"dtype": "f16"}), bias=case.normal(*SHAPE.full()))
        self.assert_case(self.make_case({"dtype": "bf16"}), bias=case.normal(*SHAPE.full()))

    def test_dropout(self):
        for p, storage in itertools.product((0.25, 0.9, 1), STORAGES):
            with self.subTest(p=p, storage=storage):
                self.assert_case(self.make_case({"dropout": {"p": p, "seed": 2**63 + 5, "offset": 2**64 - 1}}, *storage))
        for dtype, kv_dtype in itertools.product(DTYPES, (None, "i8")):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype):
                problem = {"dtype": dtype, "kv_dtype": kv_dtype, "dropout": {"p": 0.1, "seed": 1}}
                self.assert_case(self.make_case(problem, "varlen", "paged"), sink=np.zeros(4, np.float32))

    def test_all_at_once(self):
        for dtype, kv_dtype, storage in itertools.product(DTYPES, (None, "i8"), STORAGES):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype, storage=storage):
                problem = {"dtype": dtype, "kv_dtype": kv_dtype, "position": "bottom_right", "causal": True,
                           "window_left": 20, "scale": 0.3, "softcap": 5, "mask_true_hides": True,
                           "dropout": {"p": 0.2, "seed": 9, "offset": 4}, "batch_invariant": True}
                case = self.make_case(problem, *storage, page_size=5)
                self.assert_case(case, mask=(case.random.random(case.full) < 0.2).astype(np.uint8) * 9,
                                 bias=encode(case.normal(*case.full), dtype), sink=case.normal(4),
                                 alibi_slopes=case.normal(4) / 8)

    def test_no_tokens(self):
        shape = Shape(batch=3, q_len=0, kv_len=5)
        for kv_storage in "varlen", "contiguous", "paged":
            with self.subTest(kv_storage):
                self.assert_case(StoredCase(shape, with_storage({}, "varlen", kv_storage), [0] * 3, [5, 0, 2]))
        no_keys = Shape(batch=3, q_len=7, kv_len=0)
        for storage in STORAGES:
            with self.subTest(storage):
                q_lens = Q_LENS if storage[0] == "varlen" else None
                self.assert_case(StoredCase(no_keys, with_storage({"dtype": "bf16"}, *storage), q_lens, [0] * 3))

    def test_lengths_of_64_bits(self):
        case = self.make_case({}, "varlen", "paged")
        for name in "cu_seqlens_q", "kv_lens", "page_table":
            case.files[name] = case.files[name].astype(np.int64)
        self.assert_case(case)

    def test_speed_counts_visible_pairs(self):
        """The printed speed over the printed time is the number of visible pairs."""
        shape = Shape(batch=3, q_len=7, kv_len=3000, head_dim=100, head_dim_v=60)
        for q_storage, kv_storage in STORAGES:
            problem = with_storage({"causal": True, "position": "explicit"}, q_storage, kv_storage)
            q_lens = Q_LENS if q_storage == "varlen" else [7] * 3
            case = StoredCase(shape, problem, q_lens, [1500, 3000, 900])
            self.assert_case(case, q_offsets=np.array([1000, 2000, 5000], np.int32))
            printed = self.call("run", self.case, "--repeat", "3").stdout
            seconds, speed = (float(printed.split(word)[1].split()[0]) for word in ("time", "speed"))
            pairs = sum(min(i + offset + 1, kv_len) for length, kv_len, offset in
                        zip(q_lens, (1500, 3000, 900), (1000, 2000, 5000)) for i in range(length)) * shape.num_heads
            flops = 2 * pairs * (shape.head_dim + shape.head_dim_v)
            # Both are printed rounded: to 0.0005 ms and 0.005 GFLOP/s.
            self.assertLess(abs(speed * seconds * 1e6 / flops - 1), 0.001 + 0.0006 / seconds + 0.006 / speed)


class Oracle(unittest.TestCase):
    def test_philox(self):
        """Known answers of the Random123 library."""
        ones = 2**64 - 1
        for low, high, key, words in [
            (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            (ones, ones, ones, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
            (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822,
             (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
        ]:
            self.assertEqual(tuple(int(x) for x in oracle.philox(low, high, key)), words)


if __name__ == "__main__":
    main()
