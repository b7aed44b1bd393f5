"""Calls of the package compared with the oracle of tests/cli."""

import pathlib
import sys
import unittest

import ml_dtypes
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))

import heed
import oracle
from case_file import Shape, headers, make_qkv, read_tensors
from stored_case import StoredCase

__all__ = ["NUMPY_TYPES", "Shape", "StoredCase", "Test", "dense_results", "from_bits", "headers", "heed", "make_qkv", "oracle", "read_tensors",
           "typed"]

NUMPY_TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def typed(array, dtype):
    """Rounded to a type by its short name."""
    return array.astype(NUMPY_TYPES[dtype])


def from_bits(array):
    """bf16 of the case files, which is uint16 there."""
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array


def dense_results(case, out, lse):
    """As the oracle has them: 0 and -inf after each sequence's own queries."""
    out = np.asarray(out).astype(np.float32)
    return case.to_dense(out, lse) if case.q_varlen else (out, lse)


class Test(unittest.TestCase):
    def assert_near(self, expected, out, lse=None):
        """Every element, within the oracle's bounds."""
        out = np.asarray(out).astype(np.float64)
        self.assertEqual(out.shape, expected.out.shape)
        self.assertLessEqual((np.abs(out - expected.out) - expected.out_bound).max(initial=0), 0)
        if lse is None:
            return
        lse = np.asarray(lse)
        empty = np.isneginf(expected.lse)
        self.assertTrue(np.array_equal(np.isneginf(lse), empty))
        self.assertTrue((np.abs(lse[~empty] - expected.lse[~empty]) <= expected.lse_bound[~empty]).all())

    def assert_equal(self, expected, actual):
        """The same type, shape and bits."""
        expected, actual = np.asarray(expected), np.asarray(actual)
        self.assertEqual((expected.dtype, expected.shape), (actual.dtype, actual.shape))
        self.assertEqual(expected.tobytes(), actual.tobytes())

    def assert_refused(self, kind, sentence, function, *arguments, **options):
        """It raises `kind`, and the sentence names the field, its value and what is allowed."""
        with self.assertRaisesRegex(kind, sentence):
            function(*arguments, **options)
