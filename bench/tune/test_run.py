"""A whole small `./dev tune` on a kernel of AVX2: test_run.py BUILD. Takes most of a minute."""
import contextlib
import io
import json
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import unittest

import run
import space
import tables
from arguments import check_case, names_in_source, parsed
from server import Failed, Server
from trial_builder import TrialBuilder

BUILD = pathlib.Path(sys.argv.pop(1))
KERNEL = "attention_prefill_f32_d16_contiguous_avx2"


def arguments(out, *more):
    return [str(BUILD), "--case", "seed1", "--kernel", KERNEL, "--rounds", "1", "--seconds", "0.01", "--threads", "1",
            "--out", str(out), "--table", str(out / "avx2.json"), *more]


def tune(out, *more):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as bar:
        status = run.main(arguments(out, *more))
    return status, said.getvalue(), bar.getvalue()


def states(out):
    """The states of the trials in the study's file."""
    with contextlib.closing(sqlite3.connect(out / "study.db")) as database:
        return [state for state, in database.execute("select state from trials")]


class Run(unittest.TestCase):
    def test_a_study_its_table_and_its_report(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "study")
            status, said, bar = tune(out, "--trials", "2", "--random")
            self.assertEqual(status, 0, said)
            self.assertIn("4/4", bar)
            with self.assertRaisesRegex(SystemExit, "--resume"):
                tune(out, "--trials", "3", "--random")
            status, said, _ = tune(out, "--trials", "3", "--random", "--resume")
            found = json.loads((out / "found.json").read_text())
            self.assertEqual(found["trials of each search"], 3)
            self.assertGreater(found["case"]["default"]["ms"], 0)
            self.assertEqual({"Mullapudi2016", "Adams2019"} - set(found["case"]) - set(found["reasons"]), set())
            self.assertIn("Importance", (out / "report.html").read_text())
            self.assertEqual(len(states(out)), 6)
            for kernel, entry in tables.load(out / "avx2.json").items():
                self.assertEqual((kernel, entry["case"]), (KERNEL, "seed1"))
                self.assertGreater(entry["gain"], 1)

    def test_two_processes_on_one_study(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "study")
            tune(out, "--trials", "1")
            command = [sys.executable, "-B", run.__file__, *arguments(out, "--trials", "4", "--resume")]
            both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
            said = [process.communicate()[0] for process in both]
            self.assertEqual([process.returncode for process in both], [0, 0], said)
            self.assertEqual(set(states(out)) - {"COMPLETE", "PRUNED"}, set())
            self.assertIn(len(states(out)), (4, 5))  # each ends its trial
            self.assertGreaterEqual(json.loads((out / "found.json").read_text())["trials of each search"], 4)


class KernelOfACase(unittest.TestCase):
    def test_is_the_plans_own_choice(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype), contextlib.redirect_stdout(io.StringIO()) as said:
                kernel = run.kernel_of_case(parsed([str(BUILD), "--case", "seed1", "--dtype", dtype, "--threads", "1"]))
                self.assertRegex(kernel, f"^attention_prefill_{dtype}_d[0-9a-z]+")
                self.assertIn(f"seed1 in {dtype} uses {kernel}", said.getvalue())

    def test_a_case_that_only_the_program_knows_to_be_none(self):
        with self.assertRaisesRegex(SystemExit, "--case is len_511; .* near names: len_512"):
            run.kernel_of_case(parsed([str(BUILD), "--case", "len_511"]))

    def test_the_source_names_every_case(self):
        with Server([BUILD / "bench/heed_bench", "--serve", "--threads", "1"]) as server:
            for name in run.names_of(server.ask(do="hello")["cases"]):
                check_case(names_in_source(), "--case", name)


class Kernels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.builder = TrialBuilder(BUILD, pathlib.Path(folder.name, "kernel"), KERNEL, 1)

    def test_a_parameter_that_is_not_allowed(self):
        with self.assertRaisesRegex(Failed, "generation: kv_block = 100 is not allowed: masked_block"):
            self.builder.candidate({"kv_block": 100})

    def test_the_registry_says_the_blocks(self):
        start = space.start(self.builder.parameters())
        self.assertEqual(self.builder.candidate(start).name, self.builder.candidate().name)
        candidate = self.builder.candidate({"row_block": 16, "masked_block": 32, "kv_block": 64})
        fields = candidate.line.read_text().split(", ")
        self.assertEqual(fields[9:11], ["16", "64"])
        self.assertGreater(int(fields[11]), 0)

    def test_cmake_knows_the_names(self):
        text = pathlib.Path(__file__).parents[2].joinpath("cmake/HeedTuned.cmake").read_text()
        known = re.search(r"set\(_heed_parameters (.*?)\)", text, re.S)[1].split()
        decode = TrialBuilder(BUILD, self.builder.folder, "attention_decode_f32_d16_gqa_contiguous_avx2", 1)
        self.assertEqual(sorted({*self.builder.parameters(), *decode.parameters()}), known)

    def test_l2_moves_the_start(self):
        self.assertLess(self.builder.parameters(8192)["kv_block"]["default"], self.builder.parameters()["kv_block"]["default"])

    def test_an_unknown_kernel(self):
        with self.assertRaisesRegex(SystemExit, "no kernel of the table is named x"):
            TrialBuilder(BUILD, self.builder.folder, "x", 1)


if __name__ == "__main__":
    unittest.main()
