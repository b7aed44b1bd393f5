"""What the scripts of `./dev gpu` make of headers, programs that die and tools that complain: test_scripts.py HEADERS."""
import os
import pathlib
import re
import sys
import tempfile
import time
import types
import unittest

import bench
import cases
import data
import decode
import decode_cases
import gradients
import gtest
import heed_api
import run
import sanitizer
import tests

HEADERS = pathlib.Path(sys.argv.pop(1))


def struct_fields(header, name):
    """Names in the order of the declaration."""
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", (HEADERS / header).read_text(), re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    return [re.search(r"(\w+)(\[\w+\])?$", declarator.strip())[1]
            for declaration in body.split(";") if declaration.strip() for declarator in declaration.split(",")]


class Mirror(unittest.TestCase):
    def test_fields_are_those_of_the_headers(self):
        for header, name, kind in (("heed.h", "heed_problem", heed_api.Problem), ("heed.h", "heed_args", heed_api.Args),
                                   ("types.h", "heed_tensor", heed_api.Tensor), ("types.h", "heed_layout", heed_api.Layout),
                                   ("ops.h", "heed_gradients", heed_api.Gradients)):
            self.assertEqual([field[0] for field in kind._fields_], struct_fields(header, name), name)

    def test_enum_values(self):
        words = dict(re.findall(r"HEED_(\w+) = (\d+)", (HEADERS / "types.h").read_text()))
        for name, value in heed_api.DTYPES.items():
            self.assertEqual(int(words[name.upper()]), value)
        self.assertEqual([int(words[name]) for name in ("I8", "U8", "CUDA", "Q_VARLEN", "KV_VARLEN", "KV_PAGED")],
                         [heed_api.I8, heed_api.U8, heed_api.CUDA, heed_api.VARLEN, heed_api.VARLEN, heed_api.PAGED])


class Cases(unittest.TestCase):
    def test_arithmetic(self):
        by_name = {(case.name, case.dtype): case for case in cases.all_cases()}
        self.assertEqual(len(by_name), 2 * (32 + 8))
        self.assertEqual(by_name["mha_2048_d128_full", "f16"].flops(), 4 * 32 * 2048**2 * 128)
        self.assertEqual(by_name["gqa_2048_d64_causal", "bf16"].flops(), 2 * 32 * 2048**2 * 64)
        self.assertEqual(by_name["d192x128_causal", "f16"].flops(), 32 * 4096**2 * 320)
        self.assertEqual(by_name["window_1024", "f16"].flops(), 4 * 32 * 128 * (1025 * 16384 - 1025 * 1024 / 2))
        self.assertEqual(by_name["varlen_causal", "f16"].tokens, 12258)

    def test_tiny_holds_every_kind(self):
        kinds = {re.sub(r"\d{2,}", "N", case.name) for case in cases.all_cases(tiny=True)}
        self.assertGreaterEqual(kinds, {re.sub(r"\d{2,}", "N", case.name) for case in cases.all_cases()})

    def test_exact_row(self):
        case = cases.Case("", "f32", 1, 2, 1, 3, 2, 2, False)
        tiles = {"q": data.Tile.of_floats([0.0] * 7, "f32"), "v": data.Tile.of_floats([1.0, 2, 3, 4, 5, 6, 7], "f32"),
                 "k": data.Tile.of_floats([1.0] * 7, "f32")}
        self.assertEqual([round(x, 6) for x in data.exact_row(case, tiles, (0, 3), 2, 1)[0]], [3, 4])

    def test_types(self):
        for dtype in ("f32", "f16", "bf16"):
            tile = data.Tile.of_floats([1.0, -2.5, 0.375], dtype)
            self.assertEqual(data.decode(tile.bytes_of(5), dtype), (1.0, -2.5, 0.375, 1.0, -2.5))
            self.assertEqual(tile.row(4, 2), [-2.5, 0.375])

    def test_rounds(self):
        order = []
        calls = {name: (lambda name=name: order.append(name), bench.contextlib.nullcontext) for name in "ab"}
        timer = types.SimpleNamespace(time=lambda call, n=1: [call() for _ in range(n)] and 1.0)
        times = bench.time_all(calls, timer, 2, 0, lambda: 1)
        self.assertEqual("".join(order), "aaabbb" + "ab" + "ba")
        self.assertEqual(times, {"a": [1.0, 1.0], "b": [1.0, 1.0]})


class Decoding(unittest.TestCase):
    def test_cases(self):
        found = list(decode.all_cases(False))
        self.assertEqual(len({case.name for case in found if case.dtype == "f16"}), 2 * (3 * 2 * 2 * 3 + 2))
        self.assertEqual(sorted(case.name for case in bench.in_order(found)), sorted(case.name for case in found))
        self.assertEqual({case.kv_len for case in found}, {8192, 16384, 32768, 131072})
        case = decode_cases.DecodeCase("f16", "i8", 16, 32, 8, 8192)
        self.assertEqual(case.minimum_bytes(), 2 * 16 * 8 * 8192 * (128 + 4))

    def test_places(self):
        contiguous = decode_cases.DecodeCase("f16", "f16", 2, 4, 2, 40)
        self.assertEqual(decode.place_of(contiguous, 1, 1, 7), (1 * 2 + 1) * 40 + 7)
        paged = decode_cases.DecodeCase("f16", "f16", 2, 4, 2, 40, 16)
        self.assertEqual((paged.pages, paged.blocks), (3, 6))
        self.assertEqual(decode.place_of(paged, 1, 0, 17), (3 * 2 + 0) * 16 + 1)
        self.assertEqual(decode.scale_place_of(contiguous, 1, 1, 7), (1 * 40 + 7) * 2 + 1)
        self.assertEqual(decode.scale_place_of(paged, 1, 1, 17), (3 * 16 + 1) * 2 + 1)

    def test_exact_row_of_codes(self):
        case = decode_cases.DecodeCase("f16", "i8", 1, 1, 1, 3, head_dim=2)
        tiles = {"f16": {"q": data.Tile.of_floats([0.0] * 7, "f16")},
                 "i8": {"k": data.Tile([1] * 7, b"", 7), "v": data.Tile([1, 2, 3, 4, 5, 6, 7], b"", 7),
                        "scale": data.Tile.of_floats([2.0] * 7, "f32")}}
        self.assertEqual([round(x, 6) for x in decode.exact_row(case, tiles, 0, 0)[0]], [6, 8])


class Gradients(unittest.TestCase):
    def test_exact_dq(self):
        case = cases.Case("", "f16", 1, 1, 1, 2, 1, 1, False)
        tiles = {"q": data.Tile.of_floats([0.0, 0], "f16"), "k": data.Tile.of_floats([1.0, 3], "f16"),
                 "v": data.Tile.of_floats([2.0, 6], "f16"), "dout": data.Tile.of_floats([1.0, 1], "f16")}
        # Weights of a half, gradients of weights 2 and 6, delta 4: -1 * 1 + 1 * 3.
        self.assertAlmostEqual(gradients.exact_dq(case, tiles, 0, 0)[0][0], 2)

    def test_cases(self):
        found = list(gradients.all_cases(False))
        self.assertEqual(len(found), 2 * 2 * 2 * 3 * 2)
        self.assertEqual(gradients.elements_of(found[0])["dk"], found[0].elements()["k"])


class Programs(unittest.TestCase):
    OUTPUT = ("[ RUN      ] Kernels/S.A/kernel\n[       OK ] Kernels/S.A/kernel (12 ms)\n[ RUN      ] Kernels/S.B/kernel\n"
              "[  FAILED  ] Kernels/S.B/kernel, where GetParam() = kernel (3 ms)\n[  SKIPPED ] S.C (0 ms)\n[  FAILED  ] 1 test.\n")

    def shell(self, text, seconds=20.0):
        return gtest.run(["sh", "-c", text], dict(os.environ), seconds)

    def test_results(self):
        self.assertEqual(gtest.parse(self.OUTPUT), {"Kernels/S.A/kernel": "OK", "Kernels/S.B/kernel": "FAILED", "S.C": "SKIPPED"})
        line = tests.summary("p", ["Kernels/S.A/kernel", "Kernels/S.B/kernel", "S.C", "S.D"], [gtest.Run(gtest.parse(self.OUTPUT), 1, 1, "")])
        self.assertEqual([line[key] for key in ("passed", "failed", "skipped", "not_run")], [1, 1, 1, 1])

    def test_a_program_that_dies(self):
        done = self.shell("echo '[ RUN      ] S.A'; kill -SEGV $$")
        self.assertEqual(done.failures("p"), ["S.A (exit status -11)"])
        self.assertEqual(self.shell("exit 3").failures("p"), ["p (exit status 3)"])

    def test_a_program_that_takes_too_long(self):
        start = time.monotonic()
        done = self.shell("echo '[       OK ] S.A (1 ms)'; sleep 60 & sleep 60", 0.5)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual((done.exit_status, done.results, done.failures("p")), (None, {"S.A": "OK"}, []))

    def test_a_long_program_leaves_time_to_the_next(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = [pathlib.Path(folder) / name for name in ("long", "short")]
            for program, seconds in zip(programs, (60, 0)):
                program.write_text(f"#!/bin/sh\nif [ \"$1\" = --gtest_list_tests ]; then printf 'S.\\n  A\\n'; else sleep {seconds}; "
                                   "echo '[       OK ] S.A (1 ms)'; fi\n")
                program.chmod(0o755)
            end = time.monotonic() + 3
            report = types.SimpleNamespace(not_there=lambda *_, **__: None)
            lines = tests.run_programs(programs, "*", dict(os.environ), lambda: end - time.monotonic(), report)
        self.assertEqual([(line["passed"], line["not_run"]) for line in lines], [(0, 1), (1, 0)])

    def test_no_time_left(self):
        self.assertEqual(gtest.run_all([(["true"], {})], 1, lambda: 0), [None])


class Sanitizer(unittest.TestCase):
    GOOD = "[       OK ] S.A (1 ms)\n========= ERROR SUMMARY: 0 errors\n"

    def verdict(self, output, status=0):
        return sanitizer.verdict_of("memcheck", [["S.A"]], [gtest.Run(gtest.parse(output), status, 1, output)])

    def test_summaries(self):
        self.assertEqual(sanitizer.errors_of(self.GOOD), 0)
        self.assertEqual(sanitizer.errors_of("========= ERROR SUMMARY: 12 errors"), 12)
        self.assertEqual(sanitizer.errors_of("========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)"), 3)
        self.assertIsNone(sanitizer.errors_of("========= Error: no device"))

    def test_verdicts(self):
        self.assertEqual([self.verdict(self.GOOD)[key] for key in ("passed", "errors", "not_run")], [1, 0, 0])
        bad = self.verdict("[       OK ] S.A (1 ms)\n========= Invalid __global__ read\n========= ERROR SUMMARY: 1 error\n", 99)
        self.assertEqual((bad["errors"], bad["complaints"][0]), (1, "========= Invalid __global__ read"))
        self.assertEqual(self.verdict("[  FAILED  ] S.A (1 ms)\n========= ERROR SUMMARY: 0 errors\n", 1)["errors"], 1)
        self.assertEqual(self.verdict("========= Error: it broke\n", 255)["errors"], 1)
        stopped = self.verdict("", None)
        self.assertEqual([stopped[key] for key in ("errors", "not_run")], [0, 1])


class Command(unittest.TestCase):
    def test_time_is_shared(self):
        clock = run.Clock(100, ["startup", "bench"])
        startup = clock.phase("startup")()
        self.assertAlmostEqual(startup, 100 * run.PHASES["startup"] / (run.PHASES["startup"] + run.PHASES["bench"]), delta=1)
        self.assertAlmostEqual(clock.phase("bench")(), 100, delta=1)

    def test_a_part_does_not_replace_the_whole(self):
        options = types.SimpleNamespace(only=list(run.PHASES), tiny=False)
        self.assertEqual(run.default_out("NVIDIA H200 PCIe", options).name, "cuda_h200_pcie.json")
        options.only = ["bench", "startup"]
        self.assertEqual(run.default_out("NVIDIA H200", options).name, "cuda_h200_startup_bench.json")


if __name__ == "__main__":
    unittest.main()
