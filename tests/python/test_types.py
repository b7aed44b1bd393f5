"""What mypy finds in the package and in calls of it."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import heed

USE = """
from typing import Any, assert_type
import numpy as np
import heed

Array = np.ndarray[Any, np.dtype[np.float32]]

def use(q: Array, x: Array) -> None:
    assert_type(heed.attention(q, q, q, causal=True, mask=None), Array)
    assert_type(heed.attention(q, q, q, return_lse=True, kv_lens=[1, 2]), tuple[Array, Array])
    layer = heed.Layer({"wq": q}, num_heads=8, qk_norm="head")
    assert_type(layer(x, cache=layer.make_cache(1, 2)), Array)
    assert_type(layer(x, return_past=True, mask_means="hide"), tuple[Array, tuple[Any, Any]])
    assert_type(heed.rope(x, q, q, [[1]]), Array)
    assert_type(heed.merge_states([x], [q], return_lse=True), tuple[Array, Array])
    assert_type(heed.linear(x, heed.LinearWeights(q)), Array)
    assert_type(heed.attention_probs(q, q, mode="scores", softcap=1.0), Array)
    assert_type(heed.kernels(), list[dict[str, Any]])
    heed.attention(q, q, q, casual=True)  # line 19
    heed.attention(q, q, q, position="left")  # line 20
    heed.Layer({"wq": q}, heads=8)  # line 21
"""


def mypy(*arguments):
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", *arguments], capture_output=True,
                          text=True)


class Types(unittest.TestCase):
    def test_package(self):
        package = pathlib.Path(heed.__file__).parent
        with_torch = ("torch", "transformers", "_autograd", "_model_masks")  # which has no place here
        modules = [str(path) for path in package.glob("*.py*") if path.stem not in with_torch and path.suffix in (".py", ".pyi")]
        self.assertGreater(len(modules), 5)
        self.assertTrue((package / "py.typed").exists())
        done = mypy(*modules)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "use.py"
            path.write_text(USE)
            done = mypy(str(path))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        lines = {int(line) for line in re.findall(r"use\.py:(\d+): error:", done.stdout)}
        self.assertEqual(lines, {19, 20, 21}, done.stdout)


if __name__ == "__main__":
    unittest.main()
