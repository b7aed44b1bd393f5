#!/usr/bin/env python3
"""What `heed` says to bad input: exit status, a message that names the fault, and no output file."""

import ctypes.util
import os
import resource
import struct
import unittest

import numpy as np

from case_file import RefusalTest, Shape, entry, file_bytes, main, make_qkv, tensor_bytes


class Errors(RefusalTest):
    def setUp(self):
        super().setUp()
        self.shape = Shape()
        self.q, self.k, self.v = make_qkv(self.shape)
        self.write({}, q=self.q, k=self.k, v=self.v)
        self.leave_stale_outputs()

    def test_unknown_keys(self):
        self.assert_problem_refused({"casual": True}, "problem: ", '"casual"', "causal")
        self.assert_problem_refused({"layout": {"mask": "bshd"}}, '"layout.mask"', "q, k, v, out")
        self.assert_problem_refused({"dropout": {"rate": 0}}, '"dropout.rate"')

    def test_values_of_the_wrong_kind(self):
        for problem, words in [
            ({"causal": 1}, ("causal is 1", "true or false")),
            ({"window_left": 1.5}, ("window_left is 1.5", "whole number")),
            ({"window_left": 2**31}, ("window_left is 2147483648", "32 bits")),
            ({"num_splits": -2**63}, ("num_splits is -9223372036854775808", "32 bits")),
            ({"scale": "auto"}, ('scale is "auto"', "null or a finite number")),
            ({"scale": 1e39}, ("scale is 1e+39", "finite")),
            ({"dtype": "f64"}, ('dtype is "f64"', '"f32", "f16", "bf16"')),
            ({"dtype": None}, ("dtype is null", '"f32"')),
            ({"position": 0}, ("position is 0", '"top_left", "bottom_right", "explicit"')),
            ({"layout": "bhsd"}, ('layout is "bhsd"', "object")),
            ({"layout": {"q": "bsh"}}, ('layout.q is "bsh"', "b, s, h, d")),
            ({"layout": {"out": "bshh"}}, ('layout.out is "bshh"', "b, s, h, d")),
            ({"dropout": {"seed": -1}}, ("dropout.seed is -1", "0..2^64-1")),
            ({"max_q_len": 4}, ("max_q_len is 4", "null or 5")),
            ([], ("it is []", "object")),
        ]:
            with self.subTest(problem):
                self.assert_problem_refused(problem, "problem: ", *words)

    def test_values_that_the_library_refuses(self):
        self.assert_problem_refused({"window_left": -3}, "window_left is -3", "-1")
        self.assert_problem_refused({"window_right": -2}, "window_right is -2", "-1")
        self.assert_problem_refused({"softcap": -1}, "softcap is -1")
        self.assert_problem_refused({"dropout": {"p": 1.1}}, "dropout_p is 1.1")

    def test_corrupt_json(self):
        for text in ("", "{", '{"causal": true,}', '{"causal": NaN}', '{"scale": 1e999}', '{"dtype": "f32" "f16"}', "\0",
                     '{"dtype": "f32"}\0', "[" * 9999):
            with self.subTest(text[:20]):
                self.case.write_bytes(tensor_bytes({"heed_problem": text}, self.arrays))
                self.assert_refused(2, "problem: ")

    def test_no_problem(self):
        for metadata in {}, {"problem": "{}"}, {"heed_problem": {}}, {"heed_problem": None}:
            self.case.write_bytes(tensor_bytes(metadata, self.arrays))
            self.assert_refused(2, "case.safetensors is no case", '"heed_problem"', "problem as JSON")
        self.case.write_bytes(file_bytes({"q": entry(self.q, 0)}, self.q.tobytes()))
        self.assert_refused(2, "case.safetensors is no case", '"heed_problem"')

    def test_missing_arrays(self):
        for name in "q", "k", "v":
            with self.subTest(name):
                array = self.arrays[name]
                self.write({}, without=[name])
                self.assert_refused(2, f"{name} is missing")
                self.write({}, **{name: array})
        self.assert_problem_refused({"position": "explicit"}, "q_offsets is missing", "explicit")
        self.assert_problem_refused({"q_storage": "varlen"}, "q has", "3 axes, shd")

    def test_arrays_without_a_use(self):
        self.assert_array_refused("q_offsets", np.zeros(2, np.int32), "position \"explicit\"")
        self.write({}, without=["q_offsets"], maks=np.zeros(2, np.int32))
        self.assert_refused(2, 'unknown array "maks"', "arrays are q, k, v, mask")

    def test_files_that_are_none(self):
        self.case.unlink()
        self.assert_refused(2, "case.safetensors: no readable file")
        os.mkfifo(self.case)
        self.assert_refused(2, "case.safetensors: no readable file")

    def test_old_case_folder(self):
        """Its error names the command that converts it; tests/python runs that."""
        self.case.unlink()
        self.case.mkdir()
        (self.case / "problem.json").write_text("{}")
        self.assert_refused(2, f"{self.case} is a folder", f"python -m heed.convert_case {self.case} FILE")
        self.assertEqual(self.call("check", self.case).returncode, 2)

    def test_shapes(self):
        shape = self.shape
        self.assert_array_refused("q", self.q[0], "(5, 4, 32)", "4 axes, bshd")
        self.write({}, q=self.q)
        self.assert_array_refused("k", self.k[:1], "extent 1 on axis b", "have 2")
        self.assert_array_refused("k", self.k[..., :7].copy(), "extent 7 on axis d", "have 32")
        self.write({}, k=self.k)
        self.assert_array_refused("v", self.v[:, :9], "extent 9 on axis s", "have 37")
        self.write({}, v=self.v)
        for name, dtype in ("mask", bool), ("bias", np.float32):
            for extents in (2, 4, 5, 36), (3, 4, 5, 37), (5, 37), (2, 0, 5, 37):
                self.assert_array_refused(name, np.zeros(extents, dtype), "(2, 4, 5, 37)", "1 in place")
            self.write({}, **{name: np.zeros(shape.full(), dtype)})
            self.assertEqual(self.call("run", self.case).returncode, 0)
            self.write({}, without=[name])
        self.assert_array_refused("kv_lens", np.zeros(3, np.int32), "(3,)", "(2,)")

    def test_num_heads_is_no_multiple(self):
        q, k, v = make_qkv(Shape(num_heads=7, num_kv_heads=2))
        self.write({}, q=q, k=k, v=v)
        self.assert_refused(2, "num_heads is 7", "num_kv_heads")
        self.write({}, k=k[:, :, :0], v=v[:, :, :0])
        self.assert_refused(2, "num_kv_heads is 0")

    def test_element_types(self):
        self.assert_array_refused("q", self.q.astype(np.float64), "F64", "one of F32, F16, BF16")
        self.assert_array_refused("q", self.q.astype(np.float16), "F16", "F32")
        self.write({}, q=self.q)
        for dtype in "F8_E4M3", "f32", "":
            header = {"__metadata__": {"heed_problem": "{}"}, "q": {**entry(np.zeros(8, np.int8), 0), "dtype": dtype}}
            self.case.write_bytes(file_bytes(header, bytes(8)))
            self.assert_refused(2, f"q holds {dtype}; it must hold one of F32, F16, BF16, U8, I8, BOOL, I32, I64")
        self.assert_array_refused("mask", np.zeros(self.shape.full(), np.float32), "F32", "BOOL or U8")
        self.write({}, without=["mask"])
        self.assert_array_refused("kv_lens", np.zeros(2, np.float32), "F32", "I32")
        self.assert_array_refused("kv_lens", np.array([5, 2**31]), "2147483648", "fit int32")

    def test_lengths_out_of_range(self):
        for value in -1, 38:
            self.write({}, kv_lens=np.array([5, value], np.int32))
            self.assert_refused(2, f"kv_lens[1] is {value}", "0..37")

    def test_unsupported(self):
        q, k, v = make_qkv(Shape(head_dim=641))
        self.write({}, q=q, k=k)
        self.assert_refused(2, "head_dim is 641", "640")
        self.write({}, q=self.q, k=self.k)
        kernel = "attention_prefill_bf16_dany_paged_avx2"
        if kernel in self.call("kernels").stdout:
            self.assert_refused(3, f'--kernel is "{kernel}"', "dtype is f32", command=["--kernel", kernel])

    def test_broken_files(self):
        """What tests/layer asks of the reader of headers, in short."""
        good = self.case.read_bytes()
        text = good[8:8 + int.from_bytes(good[:8], "little")].decode()
        data = good[8 + len(text):]

        def with_header(old, new):
            self.assertIn(old, text)
            return file_bytes(text.replace(old, new, 1).encode(), data)

        for broken, word in [
            (b"", "at least 8"), (good[:7], "at least 8"), (good[:60], "its header claims"), (good[:-1], "rise within"),
            (b"\xff" * 8 + good[8:], "its header claims 18446744073709551615 bytes"),
            (struct.pack("<Q", 0) + good[8:], "no JSON object"), (file_bytes(b"[]"), "no JSON object"),
            (file_bytes(b"{" * 9999), "its header"), (file_bytes(text.encode() + b"}", data), "no JSON object"),
            (with_header("37", "-37"), "extents must be integers from 0 on"), (with_header("37", "9" * 30), "extents"),
            (with_header("37", "9" * 18), "whose product"), (with_header("37", "38"), "bytes"),
            (with_header('"shape"', '"shipe"'), "needs dtype, shape"), (with_header('"k"', '"q"'), "twice"),
            (with_header("[2, 5", "[[2, 5]"), "nests"),
            (with_header("[2, 5, ", "[" + "1, " * 10 + "2, 5, "), "at most 8"),
        ]:
            with self.subTest(broken[:150]):
                self.case.write_bytes(broken)
                self.assert_refused(2, word)

    def test_tensors_that_overlap(self):
        """Memory is bounded by the file: its bytes cannot be named again and again."""
        array = np.zeros(2**20, np.int8)
        header = {"__metadata__": {"heed_problem": "{}"}, **{f"x{n}": entry(array, 0) for n in range(2000)}}
        self.case.write_bytes(file_bytes(header, array.tobytes()))
        self.assert_refused(2, "its tensors overlap", call_options={
            "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_DATA, (2**28, 2**28))})

    def test_headers_that_are_long(self):
        metadata = {"heed_problem": "{}", "x": "y" * 2**20}
        self.case.write_bytes(tensor_bytes(metadata, self.arrays))
        self.assert_refused(2, "its header has", "at most 1048576 are read")
        metadata["x"] = "y" * (2**20 - 1000)
        self.case.write_bytes(tensor_bytes(metadata, self.arrays))
        self.assertEqual(self.call("run", self.case).returncode, 0)

    def test_empty_arrays_with_huge_extents(self):
        shape = [2**31 - 1, 2**31 - 1, 2**31 - 1, 0]
        arrays = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name in "qkv"}
        self.case.write_bytes(file_bytes({"__metadata__": {"heed_problem": "{}"}, **arrays}))
        self.assert_refused(2, "2147483647")

    def test_command_line(self):
        for command, words in [
            (["--kernel", "attention_none"], ('--kernel is "attention_none"', "heed kernels", "near names: attention_")),
            (["--threads", "0"], ("--threads: Value 0", "1 to 1024")),
            (["--threads", "1025"], ("--threads: Value 1025", "1 to 1024")),
            (["--kernel"], ("--kernel: 1 required NAME",)),
            (["--kernel", ""], ('--kernel is ""', "heed kernels")),
            (["--threads", "2x"], ("--threads: Value 2x", "1 to 1024")),
            (["--repeat"], ("--repeat: 1 required", "1 - 1000000")),
            (["--repeat", "-1"], ("--repeat: Value -1", "1 to 1000000")),
            (["--device", "gpu"], ("--device: gpu", "{cpu,cuda}")),
            (["--fast", "1"], ("not expected", "--fast", "--threads")),
            ([self.folder], ("not expected", self.folder)),
        ]:
            with self.subTest(command):
                self.leave_stale_outputs()
                self.assert_refused(2, *words, command=command)
        done = self.call("check", self.case, "--repeat", "2")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("not expected: 2 --repeat", done.stderr)
        self.assertEqual(self.call("run", self.case, "--device", "cpu").returncode, 0)
        for words, named in ([], "subcommand is required"), (["walk"], "walk"), (["run"], "CASE is required"), (["kernels", "x"], "x"), \
                (["kernels", "--isa", "avx"], "avx512bf16"), (["kernels", "--dtype", "float"], "bf16"):
            with self.subTest(words):
                done = self.call(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(named, done.stderr)
                self.assertIn("Usage: heed", done.stderr)
        done = self.call("kernels", "--name", "zzz")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, '--name is "zzz"; .*; near names: .+')

    def test_no_device(self):
        # Without a driver, or in a build without CUDA kernels.
        environment = {**os.environ, "LD_LIBRARY_PATH": "", "HEED_FORCE_KERNEL": ""}
        self.write({"dtype": "f16"}, **{name: array.astype(np.float16) for name, array in
                                        [("q", self.q), ("k", self.k), ("v", self.v)]})
        if not ctypes.util.find_library("cuda"):
            self.assert_refused(3, "CUDA", command=["--device", "cuda"], call_options={"env": environment})

    def test_output_that_cannot_be_written(self):
        # The limit is below the size of the results; restore_signals would make it a deadly signal.
        self.assert_refused(2, "case.out.safetensors", "cannot be written", call_options={
            "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150)), "restore_signals": False})

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_folder_without_write_permission(self):
        for name in self.outputs():
            (self.folder / name).unlink()
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        self.assert_refused(2, "case.out.safetensors", "cannot be written")

    def test_file_that_is_missing(self):
        done = self.call("run", self.folder / "missing")
        self.assertEqual(done.returncode, 2)
        self.assertIn("missing", done.stderr)
        self.assertFalse(list(self.folder.glob("missing*")))

    def test_output_name_is_taken_by_a_folder(self):
        self.out.unlink()
        self.out.mkdir()
        done = self.call("run", self.case)
        self.assertEqual(done.returncode, 2)
        self.assertIn("case.out.safetensors is a folder", done.stderr)
        self.assertEqual(self.outputs(), ["case.out.safetensors"])
        self.assertEqual(os.listdir(self.out), [])


if __name__ == "__main__":
    main()
