"""Writes case folders and runs the command on them."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "runtime"))
import headers


@dataclasses.dataclass
class Shape:
    batch: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    q_len: int = 5
    kv_len: int = 37
    head_dim: int = 32
    head_dim_v: int = 32

    def full(self):
        return self.batch, self.num_heads, self.q_len, self.kv_len


def make_qkv(shape, seed=1):
    """q, k, v as [batch, position, head, dim]."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(extents, dtype=np.float32) for extents in (
        (shape.batch, shape.q_len, shape.num_heads, shape.head_dim),
        (shape.batch, shape.kv_len, shape.num_kv_heads, shape.head_dim),
        (shape.batch, shape.kv_len, shape.num_kv_heads, shape.head_dim_v),
    )]


def to_layout(tensor, layout):
    return np.ascontiguousarray(tensor.transpose(["bshd".index(axis) for axis in layout]))


def from_layout(tensor, layout):
    return tensor.transpose([layout.index(axis) for axis in "bshd"])


class CliTest(unittest.TestCase):
    """Each test has an empty folder, self.folder. `heed` is the command's path, from the command line."""

    heed = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name) / "case"
        self.folder.mkdir()

    def start_afresh(self):
        """Removes all files of the case."""
        for path in self.folder.iterdir():
            path.unlink()

    def write(self, problem, **arrays):
        (self.folder / "problem.json").write_text(json.dumps(problem))
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)

    def call(self, *words, **options):
        return subprocess.run([self.heed, *map(str, words)], capture_output=True, text=True, errors="replace",
                              timeout=100, **options)

    def outputs(self):
        """Names of the files that only `heed run` makes."""
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith(("out", "lse")))


class RefusalTest(CliTest):
    """Case folders that the command refuses; they hold stale outputs, see leave_stale_outputs."""

    def leave_stale_outputs(self):
        for name in "out.npy", "lse.npy", "out.npy.partial":
            (self.folder / name).write_bytes(b"stale")

    def assert_refused(self, status, *words, command=(), call_options={}):
        """`heed run` fails with `status` and a message that has all `words`; nothing stale or new is left."""
        done = self.call("run", self.folder, *command, **call_options)
        self.assertEqual(done.returncode, status, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(self.outputs(), [])

    def assert_problem_refused(self, problem, *words, status=2):
        (self.folder / "problem.json").write_text(problem if isinstance(problem, str) else json.dumps(problem))
        self.assert_refused(status, *words)
        self.assertEqual(self.call("check", self.folder).returncode, status)

    def assert_array_refused(self, name, array, *words, problem={}):
        self.write(problem, **{name: array})
        self.assert_refused(2, f"{name}.npy", *words)


def main():
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} HEED [unittest's options]")
    CliTest.heed = sys.argv.pop(1)
    unittest.main()
