#!/usr/bin/env python3
"""What `heed run` and `heed check` compute on good cases."""

import json
import pathlib
import re
import unittest

import numpy as np

import oracle
from case_file import CliTest, Shape, entry, file_bytes, from_layout, headers, main, make_qkv, to_layout


def default_fields():
    """What the problem takes by the lists of fields.h, at its defaults."""
    words = {"false": False, "NAN": None, **{word.name: word.initial for word in headers.entries("HEED_POSITION_WORDS")}}
    listed = headers.entries("HEED_CALL_FIELDS") + headers.entries("HEED_LOGIT_FIELDS")
    return {field.name: words[field.initial] if field.initial in words else int(field.initial) for field in listed}


class Results(CliTest):
    def assert_result(self, shape, problem, **arrays):
        """Runs and checks the case: every element of out and lse, and what is printed."""
        q, k, v = make_qkv(shape)
        layout = {"q": "bshd", "k": "bshd", "v": "bshd", "out": "bshd", **problem.get("layout", {})}
        self.write_afresh(problem, q=to_layout(q, layout["q"]), k=to_layout(k, layout["k"]), v=to_layout(v, layout["v"]),
                          **arrays)
        done = self.call("run", self.case, "--threads", 2)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"kernel +attention_(prefill|decode)_f32_\w+\n")
        self.assertRegex(done.stdout, r"time +[0-9.]+ ms")
        self.assertRegex(done.stdout, r"speed +[0-9.]+ GFLOP/s")
        self.assertEqual(self.outputs(), ["case.out.safetensors"])

        expected = oracle.attend(problem, q, k, v, **arrays)
        out, lse = self.results()
        self.assertEqual((out.dtype, lse.dtype), (np.float32, np.float32))
        self.assertEqual(out.shape, to_layout(expected.out, layout["out"]).shape)
        self.assertEqual(lse.shape, expected.lse.shape)
        out = from_layout(out, layout["out"])
        empty = np.isneginf(expected.lse)
        self.assertTrue(np.array_equal(np.isneginf(lse), empty))
        self.assertTrue((np.abs(out - expected.out) <= expected.out_bound).all())
        self.assertTrue((np.abs(lse[~empty] - expected.lse[~empty]) <= expected.lse_bound[~empty]).all())

        done = self.call("check", self.case)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("verdict  good", done.stdout)
        return expected

    def test_defaults(self):
        self.assert_result(Shape(), {})

    def test_layouts(self):
        for layouts in ("bhsd", "bhsd", "bhsd", "bhsd"), ("sbhd", "bshd", "hbsd", "shbd"):
            with self.subTest(layouts):
                self.assert_result(Shape(), {"layout": dict(zip(("q", "k", "v", "out"), layouts))})

    def test_head_dim_v_differs(self):
        self.assert_result(Shape(head_dim=33, head_dim_v=111), {})

    def test_heads(self):
        for num_heads, num_kv_heads in (6, 6), (6, 3), (6, 1):
            with self.subTest(num_heads=num_heads, num_kv_heads=num_kv_heads):
                self.assert_result(Shape(num_heads=num_heads, num_kv_heads=num_kv_heads), {})

    def test_decode(self):
        self.assert_result(Shape(q_len=1, kv_len=300, head_dim=64, head_dim_v=64), {})

    def test_causal(self):
        for position in "top_left", "bottom_right":
            with self.subTest(position):
                self.assert_result(Shape(q_len=70, kv_len=90), {"causal": True, "position": position})

    def test_rows_without_keys(self):
        expected = self.assert_result(Shape(q_len=9, kv_len=4), {"causal": True, "position": "bottom_right"})
        self.assertTrue(np.isneginf(expected.lse[:, :, :5]).all())
        self.assertTrue((self.results()[0][:, :5] == 0).all())

    def test_window(self):
        self.assert_result(Shape(q_len=40, kv_len=64), {"window_left": 7, "window_right": 3})
        self.assert_result(Shape(q_len=40, kv_len=64), {"window_left": 0, "causal": True, "position": "bottom_right"})

    def test_q_offsets(self):
        for dtype in np.int32, np.int64:
            self.assert_result(Shape(q_len=8), {"causal": True, "position": "explicit"},
                               q_offsets=np.array([-3, 20], dtype))

    def test_kv_lens(self):
        for dtype in np.int32, np.int64:
            self.assert_result(Shape(), {"causal": True, "position": "bottom_right"}, kv_lens=np.array([11, 37], dtype))
        self.assert_result(Shape(), {}, kv_lens=np.array([0, 5], np.int32))

    def test_mask(self):
        random = np.random.default_rng(2)
        batch, num_heads, q_len, kv_len = Shape().full()
        for shape in (batch, num_heads, q_len, kv_len), (1, 1, q_len, kv_len), (batch, 1, 1, kv_len):
            for hides in False, True:
                with self.subTest(shape=shape, hides=hides):
                    mask = random.random(shape) < 0.6
                    self.assert_result(Shape(), {"mask_true_hides": hides}, mask=mask)
                    self.assert_result(Shape(), {"mask_true_hides": hides}, mask=mask.astype(np.uint8) * 7)

    def test_bias(self):
        random = np.random.default_rng(3)
        batch, num_heads, q_len, kv_len = Shape().full()
        for shape in (batch, num_heads, q_len, kv_len), (1, num_heads, 1, kv_len), (1, 1, q_len, 1):
            with self.subTest(shape=shape):
                self.assert_result(Shape(), {}, bias=random.standard_normal(shape, dtype=np.float32))
        bias = random.standard_normal((1, 1, q_len, kv_len), dtype=np.float32)
        bias[..., 3:9] = -np.inf
        self.assert_result(Shape(), {}, bias=bias)

    def test_mask_and_bias_and_causal(self):
        random = np.random.default_rng(4)
        shape = Shape(q_len=33, kv_len=50)
        self.assert_result(shape, {"causal": True, "position": "bottom_right", "scale": 0.3},
                           mask=random.random((2, 1, 33, 50)) < 0.8,
                           bias=random.standard_normal((1, 4, 33, 50), dtype=np.float32))

    def test_scale(self):
        for scale in 0, -0.5, 1:
            with self.subTest(scale):
                self.assert_result(Shape(), {"scale": scale})

    def test_explicit_defaults(self):
        self.assert_result(Shape(), {
            "dtype": "f32", "kv_dtype": None, "layout": {"q": "bshd", "k": "bshd", "v": "bshd", "out": "bshd"},
            "q_storage": "dense", "kv_storage": "contiguous", "max_q_len": None,
            "dropout": {"p": 0, "seed": 0, "offset": 0}, **default_fields()})

    def test_no_keys_and_no_queries(self):
        for shape in Shape(kv_len=0), Shape(q_len=0), Shape(batch=0):
            with self.subTest(shape):
                q, k, v = make_qkv(shape)
                self.write({}, q=q, k=k, v=v)
                done = self.call("run", self.case)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                out, lse = self.results()
                self.assertEqual(out.shape, (shape.batch, shape.q_len, shape.num_heads, shape.head_dim_v))
                self.assertTrue((out == 0).all() and np.isneginf(lse).all())
                self.assertEqual(self.call("check", self.case).returncode, 0)

    def test_where_the_data_are_is_free(self):
        """Other metadata, tensors in any order, unaligned, with gaps."""
        arrays = dict(zip("vkq", reversed(make_qkv(Shape()))))
        self.write({}, **arrays)
        self.assertEqual(self.call("run", self.case).returncode, 0)
        expected = self.results()
        header, data = {"__metadata__": {"format": "np", "heed_problem": "{}"}}, b""
        for name, array in arrays.items():
            data += b"?"
            header[name] = entry(array, len(data))
            data += array.tobytes()
        self.case.write_bytes(file_bytes(header, data))
        self.assertEqual(self.call("run", self.case).returncode, 0)
        for one, other in zip(expected, self.results()):
            self.assertTrue(np.array_equal(one, other))

    def test_names_of_outputs(self):
        for name, out in ("a.b.safetensors", "a.b.out.safetensors"), ("plain", "plain.out.safetensors"):
            self.write({}, **dict(zip("qkv", make_qkv(Shape()))))
            self.case.rename(self.folder / name)
            self.assertEqual(self.call("run", name, cwd=self.folder).returncode, 0)
            self.assertIn(out, self.outputs())

    def test_threads_and_repeats_leave_the_bits(self):
        q, k, v = make_qkv(Shape(q_len=200, kv_len=200))
        self.write({"causal": True}, q=q, k=k, v=v)
        results = []
        for words in ("--threads", "1"), ("--threads", "2", "--threads", "3", "--repeat", "4"):
            self.assertEqual(self.call("run", self.case, *words).returncode, 0)
            results.append(self.out.read_bytes())
        self.assertEqual(results[0], results[1])

    def test_forced_kernel_runs(self):
        q, k, v = make_qkv(Shape())
        self.write({}, q=q, k=k, v=v)
        listed = self.call("kernels").stdout
        kernels = re.findall(r"^(attention_prefill_f32_(?:d32|dany)\S*) .* yes$", listed, re.M)
        self.assertTrue(kernels, listed)
        for kernel in kernels:
            with self.subTest(kernel):
                for command in "run", "check":
                    done = self.call(command, self.case, "--kernel", kernel)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(f"kernel   {kernel}\n", done.stdout)


class Words(CliTest):
    def test_help_and_version(self):
        for words, named in [((), ("kernels", "run", "check", "Exit status")),
                             (("run",), ("CASE", "--device", "{cpu,cuda}", "--kernel NAME", "--threads", "--repeat")),
                             (("check",), ("CASE", "--device", "{cpu,cuda}", "--kernel NAME", "--threads"))]:
            done = self.call(*words, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for word in named:
                self.assertIn(word, done.stdout)
        self.assertRegex(self.call("--version").stdout, r"^heed \d+\.\d+\.\d+\n$")

    def test_kernels(self):
        done = self.call("kernels")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^name +phase +dtype")
        for phase in "prefill", "decode":
            self.assertRegex(done.stdout, rf"\nattention_{phase}_f32_dany\S* +{phase} +f32 +f32 +any +any ")
        kernels, operations = done.stdout.split("\n\n")
        for line in kernels.splitlines()[1:]:
            name, *_, features, isa = line.split()[:8]
            self.assertGreater(int(line.split()[8]), 1000)  # of machine code
            listed = "" if features == "-" else "_" + features
            self.assertRegex(name, rf"_d[a-z0-9]+{listed}_(contiguous|paged)_{isa}(_wide|_whole)?$")
        self.assertRegex(operations, r"^name +operation +dtype +kv +rows +columns +isa +here\n")
        self.assertRegex(operations, r"\nlinear_f32\S* +linear +f32 +f32 +\d+ +\d+ +(x86_64|avx2|avx512) +")

    def test_filters_of_kernels(self):
        listed = json.loads(self.call("kernels", "--json").stdout)
        self.assertEqual(set(listed), {"kernels", "operations"})
        isa = listed["kernels"][0]["isa"]
        for row in listed["kernels"] + listed["operations"]:
            self.assertIs(type(row["here"]), bool)
            self.assertEqual(row["why_not"] == "", row["here"])
            for key in {"head_dim", "head_dim_v", "code_bytes", "rows", "columns"} & row.keys():
                self.assertTrue(isinstance(row[key], int) or (key.startswith("head_dim") and row[key] == "any"), (key, row))
        for words, holds in ((("--isa", isa), lambda row: row["isa"] == isa), (("--dtype", "bf16"), lambda row: row["dtype"] == "bf16"),
                             (("--name", "d64"), lambda row: "d64" in row["name"]), (("--here",), lambda row: row["here"] is True)):
            with self.subTest(words):
                done = self.call("kernels", "--json", *words)
                self.assertEqual(json.loads(done.stdout), {kind: [row for row in rows if holds(row)] for kind, rows in listed.items()})

    def test_template(self):
        done = self.call("run", "--template")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        problem = json.loads(done.stdout)
        q, k, v = make_qkv(Shape())
        self.write(problem, q=q, k=k, v=v)
        self.assertEqual(self.call("run", self.case).returncode, 0)
        documented = pathlib.Path(__file__).parents[2] / "docs/reference/case-file.md"
        keys = json.loads(re.search(r"```json\n(.*?)```", documented.read_text(), re.S)[1])
        self.assertEqual(problem.keys(), keys.keys())
        self.assertEqual({**problem, "kv_dtype": None}, keys)


if __name__ == "__main__":
    main()
