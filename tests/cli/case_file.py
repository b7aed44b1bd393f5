"""Writes case files and runs the command on them."""

import dataclasses
import json
import pathlib
import struct
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


TYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", "int8": "I8", "bool": "BOOL", "int32": "I32",
         "int64": "I64", "float64": "F64"}  # 16-bit patterns are bf16


def entry(array, begin):
    return {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, begin + array.nbytes]}


def file_bytes(header, data=b""):
    """A safetensors file with a header that may be text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor_bytes(metadata, arrays):
    header, data = {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        header[name] = entry(array, len(data))
        data += array.tobytes()
    return file_bytes(header, data)


def read_tensors(path):
    """Arrays by name; bf16 as its bits."""
    types = {name: np.dtype(dtype) for dtype, name in TYPES.items()}
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: np.frombuffer(content, types[found["dtype"]], offset=begin + found["data_offsets"][0],
                                count=int(np.prod(found["shape"], dtype=np.int64))).reshape(found["shape"])
            for name, found in header.items() if name != "__metadata__"}


class CliTest(unittest.TestCase):
    """Each test has an empty folder, self.folder, and the path of a case there. `heed` is the command's path, from the
    command line."""

    heed = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.case = self.folder / "case.safetensors"
        self.out = self.folder / "case.out.safetensors"
        self.arrays = {}

    def write(self, problem, without=(), **arrays):
        """The case with these arrays, and those of earlier calls except `without`."""
        self.arrays.update(arrays)
        for name in without:
            del self.arrays[name]
        self.case.write_bytes(tensor_bytes({"heed_problem": json.dumps(problem)}, self.arrays))

    def write_afresh(self, problem, **arrays):
        """The case with these arrays alone; no results."""
        for path in self.folder.iterdir():
            path.unlink()
        self.arrays = {}
        self.write(problem, **arrays)

    def call(self, *words, **options):
        return subprocess.run([self.heed, *map(str, words)], capture_output=True, text=True, errors="replace",
                              timeout=100, **options)

    def results(self):
        """out and lse of `heed run`."""
        arrays = read_tensors(self.out)
        self.assertEqual(sorted(arrays), ["lse", "out"])
        return arrays["out"], arrays["lse"]

    def outputs(self):
        """Names of the files that only `heed run` makes."""
        return sorted(path.name for path in self.folder.iterdir() if ".out." in path.name)


class RefusalTest(CliTest):
    """Cases that the command refuses; next to them are stale outputs, see leave_stale_outputs."""

    def leave_stale_outputs(self):
        for name in self.out.name, self.out.name + ".partial":
            (self.folder / name).write_bytes(b"stale")

    def assert_refused(self, status, *words, command=(), call_options={}):
        """`heed run` fails with `status` and a message that has all `words`; nothing stale or new is left."""
        done = self.call("run", self.case, *command, **call_options)
        self.assertEqual(done.returncode, status, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(self.outputs(), [])

    def assert_problem_refused(self, problem, *words, status=2):
        self.write(problem)
        self.assert_refused(status, *words)
        self.assertEqual(self.call("check", self.case).returncode, status)

    def assert_array_refused(self, name, array, *words, problem={}):
        self.write(problem, **{name: array})
        self.assert_refused(2, f"{name} ", *words)


def main():
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} HEED [unittest's options]")
    CliTest.heed = sys.argv.pop(1)
    unittest.main()
