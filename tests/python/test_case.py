"""Cases that Python writes, as `heed run` and `heed check` read them: save_case, convert_case, the snippets of the documentation;
takes the command's path."""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from support import Shape, StoredCase, Test, from_bits, heed, make_qkv, read_tensors, typed

HEED = pathlib.Path(sys.argv.pop(1)).resolve()
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/case-file.md"
DTYPES = "f32", "f16", "bf16"
STORAGES = ("dense", "contiguous"), ("dense", "paged"), ("varlen", "varlen"), ("varlen", "contiguous"), ("varlen", "paged")
SHAPE = Shape(batch=3, q_len=7, kv_len=37)


class CaseTest(Test):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "case.safetensors"

    def heed(self, *words):
        done = subprocess.run([HEED, *map(str, words)], capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def run_case(self):
        """out and lse; bf16 as its bits."""
        self.assertIn("verdict  good", self.heed("check", self.path))
        self.heed("run", self.path)
        results = read_tensors(self.folder / "case.out.safetensors")
        return results["out"], results["lse"]


class SaveCase(CaseTest):
    def assert_same(self, q, k, v, **options):
        """The command computes the bits that heed.attention does."""
        heed.save_case(self.path, q, k, v, **options)
        out, lse = heed.attention(q, k, v, return_lse=True, **options)
        stored_out, stored_lse = self.run_case()
        self.assert_equal(out.view(np.uint16) if out.dtype.name == "bfloat16" else out, stored_out)
        self.assert_equal(lse, stored_lse)

    def test_types_and_storages(self):
        for dtype, kv_dtype, (q_storage, kv_storage) in itertools.product(DTYPES, (None, "i8"), STORAGES):
            with self.subTest(dtype=dtype, kv_dtype=kv_dtype, q_storage=q_storage, kv_storage=kv_storage):
                problem = {"dtype": dtype, "kv_dtype": kv_dtype, "q_storage": q_storage, "kv_storage": kv_storage}
                case = StoredCase(SHAPE, problem, [7, 0, 3] if q_storage == "varlen" else None, [21, 37, 6])
                arrays = {name: from_bits(array) for name, array in case.files.items()}
                self.assert_same(**arrays, causal=True, position="bottom_right")

    def test_options(self):
        q, k, v = make_qkv(SHAPE)
        random = np.random.default_rng(2)
        for options in (
            {"mask": random.random((7, 37)) < 0.7, "mask_true_hides": True, "num_splits": 2},
            {"bias": random.standard_normal((4, 1, 37), np.float32), "scale": np.float32(0.3), "softcap": 5},
            {"sink": np.arange(4, dtype=np.float32), "window_left": 9, "window_right": np.int64(3), "batch_invariant": True},
            {"alibi_slopes": np.full(4, 0.1, np.float32), "alibi_symmetric": True, "q_offsets": [-3, 5, 30], "causal": True},
            {"dropout_p": 0.3, "dropout_seed": 2**64 - 1, "dropout_offset": 5, "kv_lens": [1, 2, 3], "max_threads": 1},
            {"mask": None, "causal": False, "workspace": None},
        ):
            with self.subTest(options):
                self.assert_same(q, k, v, **options)

    def test_views(self):
        q, k, v = (array.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for array in make_qkv(SHAPE))
        self.assert_same(q, k, v[..., :24])
        q, k, v = (typed(array, "bf16") for array in (q, k, v))
        self.assert_same(q[1:], k[1:, :5], v[1:, :5])

    def test_named_max_q_len(self):
        q, k, v = make_qkv(Shape(batch=1, q_len=7, kv_len=7))
        sums = np.array([0, 3, 7])
        self.assert_same(q[0], k[0], v[0], cu_seqlens_q=sums, cu_seqlens_kv=sums, max_q_len=9, dropout_p=0.4)

    def test_refusals(self):
        q, k, v = make_qkv(SHAPE)
        for options in {"score_mod": "documents"}, {"max_kv_len": 37}:
            name = next(iter(options))
            self.assert_refused(heed.InvalidArgument, f"{name} is given; a case file has no place",
                                heed.save_case, self.path, q, k, v, **options)
        for array, word in (q.astype(np.float64), "float64"), (q > 0, "bool"), (q.astype(">f4"), ">f4"):
            self.assert_refused(heed.InvalidArgument, f"q has elements of {word}", heed.save_case, self.path, array, k, v)
        self.assert_refused(heed.InvalidArgument, "kv_lens has elements of float64", heed.save_case, self.path, q, k, v,
                            kv_lens=[0.5, 1, 2])
        self.assert_refused(heed.InvalidArgument, r"sink has the shape \[2, 2\]; it must be \[num_heads\], which is \[4\]", heed.save_case,
                            self.path, q, k, v, sink=np.ones((2, 2), np.float32))
        self.assert_refused(heed.InvalidArgument, "mask has the shape", heed.save_case, self.path, q, k, v, mask=np.ones((3, 3), bool))
        self.assertFalse(self.path.exists())
        self.assert_refused(OSError, "missing", heed.save_case, self.folder / "missing/case", q, k, v)


class ConvertCase(CaseTest):
    def convert(self, problem, **arrays):
        """An old case folder by the command that `heed run` names."""
        folder = self.folder / "old"
        folder.mkdir(exist_ok=True)
        (folder / "problem.json").write_text(json.dumps(problem))
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        done = subprocess.run([HEED, "run", folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        words = re.search(r"python (-m .*)", done.stderr)[1].split()
        self.assertEqual(words[-1], "FILE")
        return subprocess.run([sys.executable, *words[:-1], self.path], capture_output=True, text=True, env=os.environ)

    def test_folders(self):
        for dtype, (q_storage, kv_storage) in itertools.product(DTYPES, STORAGES):
            with self.subTest(dtype=dtype, q_storage=q_storage, kv_storage=kv_storage):
                problem = {"dtype": dtype, "q_storage": q_storage, "kv_storage": kv_storage, "causal": True}
                case = StoredCase(SHAPE, problem, [7, 0, 3] if q_storage == "varlen" else None, [21, 37, 6])
                files = {**case.files, "sink": np.ones(4, np.float32), "mask": np.ones(case.full, bool)}
                for name in "cu_seqlens_q", "kv_lens":
                    if name in files:
                        files[name] = files[name].astype(np.int64)
                if dtype == "f16":
                    files["q"] = files["q"].view(np.uint16)
                for path in self.folder.glob("old/*"):
                    path.unlink()
                done = self.convert(problem, **files, out=np.zeros(1), lse=np.zeros(1))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                arrays = {name: from_bits(array) for name, array in case.files.items()}
                out, lse = heed.attention(**arrays, causal=True, sink=files["sink"], mask=files["mask"], return_lse=True)
                stored_out, stored_lse = self.run_case()
                self.assert_equal(out.view(np.uint16) if dtype == "bf16" else out, stored_out)
                self.assert_equal(lse, stored_lse)

    def test_refusals(self):
        q, k, v = make_qkv(SHAPE)
        done = self.convert({}, q=q, k=k, v=v.astype(np.float64))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "v.npy holds float64; it must hold one of float32")
        done = subprocess.run([sys.executable, "-m", "heed.convert_case", self.folder / "none", self.path], capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"problem.json", done.stderr)
        self.assertFalse(self.path.exists())


class Documentation(CaseTest):
    def test_snippets(self):
        """Each block of Python in docs/reference/case-file.md writes case.safetensors."""
        snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        self.assertEqual(len(snippets), 2)
        for snippet in snippets:
            with self.subTest(snippet):
                self.path.unlink(missing_ok=True)
                subprocess.run([sys.executable, "-c", snippet], check=True, cwd=self.folder)
                out, lse = self.run_case()
                self.assertTrue(np.isfinite(out).all() and np.isfinite(lse).all())


if __name__ == "__main__":
    unittest.main()
