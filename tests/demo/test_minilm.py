"""heed_minilm against the NumPy model, and against broken files.

usage: test_minilm.py HEED_MINILM PREPARE.py WORK_FOLDER [SENTENCES]   (the first of the book; default: all)"""

import json
import math
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
from compare_embeddings import EMBEDDING_BOUND, largest_difference
from reference import Model, erf

PROGRAM, PREPARE, WORK = (Path(argument) for argument in sys.argv[1:4])
MOST_SENTENCES = int(sys.argv[4]) if len(sys.argv) > 4 else None
SETS = ("sentences", "passages", "queries")


def floats_of(folder: Path, name: str) -> np.ndarray:
    return np.fromfile(folder / f"{name}.f32", np.float32)


def run_program(folder: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, folder, *options], capture_output=True, text=True, timeout=600)


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        WORK.mkdir(parents=True, exist_ok=True)
        lines = PREPARE.with_name("alice.txt").read_text(encoding="utf-8").splitlines()
        book = WORK / "book.txt"
        book.write_text("\n".join(lines[:MOST_SENTENCES]) + "\n", encoding="utf-8")
        subprocess.run([sys.executable, PREPARE, "--out", WORK, "--book", book], check=True)
        assets = json.loads((WORK / "assets.json").read_text(encoding="utf-8"))
        model = Model(Path(assets["weights"]))
        cls.expected = {name: np.array([model.embed(piece["ids"]) for piece in assets[name]]) for name in SETS}

    def difference(self, folder: str, *options: str) -> float:
        out = WORK / folder
        out.mkdir(parents=True, exist_ok=True)
        for name in SETS:
            (out / f"{name}.f32").unlink(missing_ok=True)
        result = run_program(WORK, "--skip-naive", "--out", str(out), *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        differences = {name: largest_difference(floats_of(out, name).reshape(-1, 384), self.expected[name]) for name in SETS}
        for name, value in differences.items():
            print(f"{folder}: {name}: largest difference {value:.2e}, {value / EMBEDDING_BOUND:.3g} of the bound")
        return max(differences.values())

    def test_embeddings_are_the_model_s(self) -> None:
        self.assertLessEqual(self.difference("embeddings"), EMBEDDING_BOUND)

    def test_one_thread_gives_the_same_bits(self) -> None:
        self.difference("two_threads", "--threads", "2")
        self.difference("one_thread", "--threads", "1")
        for name in SETS:
            one, two = (floats_of(WORK / folder, name) for folder in ("one_thread", "two_threads"))
            self.assertEqual(one.tobytes(), two.tobytes(), name)

    def test_ignoring_lengths_fails_the_same_comparison(self) -> None:
        difference = self.difference("ignore_lengths", "--ignore-lengths")
        self.assertGreater(difference, EMBEDDING_BOUND)
        self.assertTrue(math.isfinite(difference), "other keys, but still unit vectors")

    def test_sentences_differ(self) -> None:
        """A comparison of near-constant vectors would prove little."""
        scores = self.expected["sentences"] @ self.expected["sentences"].T
        self.assertLess(np.median(scores), 0.5)

    def test_reference_erf(self) -> None:
        points = np.linspace(-7, 7, 9973)
        exact = np.array([math.erf(point) for point in points])
        self.assertLessEqual(np.abs(erf(points) - exact).max(), 4 * np.finfo(np.float64).eps)


FIRST_TENSOR = "embeddings.word_embeddings.weight"


def safetensors(header: object, data: bytes = b"\0" * 64) -> bytes:
    """Tensors after a header of JSON are aligned; `header` as bytes is taken as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if not isinstance(header, bytes):
        text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: object = "F32", shape: object = (30522, 384), offsets: object = (0, 64)) -> dict:
    return {FIRST_TENSOR: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BROKEN_WEIGHTS = {
    "empty": b"",
    "short": b"\x08\0\0",
    "no_header": (16).to_bytes(8, "little"),
    "huge_header": (2**64 - 1).to_bytes(8, "little") + b"{}",
    "header_past_the_end": (3).to_bytes(8, "little") + b"{}",
    "not_json": safetensors(b"\xff\xfe{"),
    "not_an_object": safetensors([1, 2]),
    "deep": safetensors(b"[" * 100000),
    "no_tensor": safetensors({"__metadata__": {"format": "pt"}}),
    "entry_is_no_object": safetensors({FIRST_TENSOR: 7}),
    "f16": safetensors(tensor(dtype="F16")),
    "dtype_is_no_string": safetensors(tensor(dtype=5)),
    "other_dtype": safetensors(tensor(dtype="I32", shape=[4, 4])),
    "dtype_without_view": safetensors(tensor(dtype="I64", shape=[4, 2])),
    "other_shape": safetensors(tensor(shape=[4, 4])),
    "other_rank": safetensors(tensor(shape=[16])),
    "negative_shape": safetensors(tensor(shape=[-30522, -384])),
    "fractional_shape": safetensors(tensor(shape=[30522.0, 384.0])),
    "shape_larger_than_data": safetensors(tensor()),
    "offsets_past_the_end": safetensors(tensor(offsets=[0, 30522 * 384 * 4])),
    "offsets_reversed": safetensors(tensor(offsets=[64, 0])),
    "offsets_negative": safetensors(tensor(offsets=[-64, 0])),
    "offsets_huge": safetensors(tensor(offsets=[2**64 - 64, 2**64 - 1])),
    "offsets_beyond_64_bits": safetensors(tensor(offsets=[0, 2**64])),
    "one_offset": safetensors(tensor(offsets=[0])),
}


def assets_with(weights: Path, **changes: object) -> dict:
    piece = [{"text": "a", "ids": [101, 102]}]
    assets = {"weights": str(weights), "title": "t", "sentences": piece, "passages": piece, "queries": piece}
    return {**assets, **changes}


MESSAGES = {
    "no_tensor": [FIRST_TENSOR],
    "other_dtype": [FIRST_TENSOR, "F32"],
    "dtype_without_view": [FIRST_TENSOR, "I64"],
    "other_shape": [FIRST_TENSOR, "[4, 4]", "[30522, 384]"],
    "other_rank": [FIRST_TENSOR, "[16]", "[30522, 384]"],
}

BROKEN_ASSETS = {
    "negative_id": {"queries": [{"text": "a", "ids": [-1]}]},
    "unknown_id": {"queries": [{"text": "a", "ids": [30522]}]},
    "id_beyond_32_bits": {"queries": [{"text": "a", "ids": [2**32 + 30522]}]},
    "no_ids": {"queries": [{"text": "a", "ids": []}]},
    "too_many_ids": {"queries": [{"text": "a", "ids": [101] * 513}]},
    "no_sentence": {"sentences": []},
    "missing_text": {"queries": [{"ids": [101]}]},
    "wrong_type": {"title": 5},
}


class BrokenInput(unittest.TestCase):
    """A message and exit status 1; never a crash, never an embedding."""

    def check_refused(self, assets: str) -> str:
        folder, out = WORK / "broken", WORK / "refused"
        folder.mkdir(exist_ok=True)
        out.mkdir(exist_ok=True)
        (folder / "assets.json").write_text(assets, encoding="utf-8")
        result = run_program(folder, "--skip-naive", "--out", str(out))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertTrue(result.stderr.startswith("heed_minilm: "), result.stderr)
        self.assertEqual(list(out.iterdir()), [])
        return result.stderr

    def test_weights(self) -> None:
        weights = WORK / "broken.safetensors"
        for name, content in BROKEN_WEIGHTS.items():
            with self.subTest(name):
                weights.write_bytes(content)
                message = self.check_refused(json.dumps(assets_with(weights)))
                for part in MESSAGES.get(name, []):
                    self.assertIn(part, message)

    def test_assets(self) -> None:
        for name, changes in BROKEN_ASSETS.items():
            with self.subTest(name):
                self.check_refused(json.dumps(assets_with(WORK / "none.safetensors", **changes)))
        self.check_refused("{")

    def test_command_line(self) -> None:
        for options in (["--threads", "0"], ["--threads", "two"], ["--threads"], ["--nonsense"]):
            with self.subTest(options):
                result = run_program(WORK, *options)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("Usage:", result.stderr)


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
