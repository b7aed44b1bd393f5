#!/usr/bin/env python3
"""What `heed` says to bad input: exit status, a message that names the fault, and no output file."""

import ctypes.util
import os
import resource
import struct
import unittest

import numpy as np

from case_folder import RefusalTest, Shape, main, make_qkv


class Errors(RefusalTest):
    def setUp(self):
        super().setUp()
        self.shape = Shape()
        self.q, self.k, self.v = make_qkv(self.shape)
        self.write({}, q=self.q, k=self.k, v=self.v)
        self.leave_stale_outputs()

    def test_unknown_keys(self):
        self.assert_problem_refused({"casual": True}, "problem.json", '"casual"', "causal")
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
                self.assert_problem_refused(problem, "problem.json", *words)

    def test_values_that_the_library_refuses(self):
        self.assert_problem_refused({"window_left": -3}, "window_left is -3", "-1")
        self.assert_problem_refused({"window_right": -2}, "window_right is -2", "-1")
        self.assert_problem_refused({"softcap": -1}, "softcap is -1")
        self.assert_problem_refused({"dropout": {"p": 1.1}}, "dropout_p is 1.1")

    def test_corrupt_json(self):
        for text in ("", "{", '{"causal": true,}', '{"causal": NaN}', '{"scale": 1e999}', '{"dtype": "\udc80"}',
                     "[" * 9999):
            with self.subTest(text[:20]):
                (self.folder / "problem.json").write_text(text, errors="surrogateescape")
                self.assert_refused(2, "problem.json")

    def test_missing_files(self):
        for name in "problem.json", "q.npy", "k.npy", "v.npy":
            with self.subTest(name):
                content = (self.folder / name).read_bytes()
                (self.folder / name).unlink()
                self.assert_refused(2, name)
                (self.folder / name).mkdir()
                self.assert_refused(2, name)
                (self.folder / name).rmdir()
                (self.folder / name).write_bytes(content)
        self.assert_problem_refused({"position": "explicit"}, "q_offsets.npy is missing", "explicit")
        self.assert_problem_refused({"q_storage": "varlen"}, "q.npy", "3 axes, shd")

    def test_files_without_a_use(self):
        self.assert_array_refused("q_offsets", np.zeros(2, np.int32), "position \"explicit\"")

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
            self.assertEqual(self.call("run", self.folder).returncode, 0)
            (self.folder / f"{name}.npy").unlink()
        self.assert_array_refused("kv_lens", np.zeros(3, np.int32), "(3,)", "(2,)")

    def test_num_heads_is_no_multiple(self):
        q, k, v = make_qkv(Shape(num_heads=7, num_kv_heads=2))
        self.write({}, q=q, k=k, v=v)
        self.assert_refused(2, "num_heads is 7", "num_kv_heads")
        self.write({}, k=k[:, :, :0], v=v[:, :, :0])
        self.assert_refused(2, "num_kv_heads is 0")

    def test_element_types(self):
        self.assert_array_refused("q", self.q.astype(np.float64), "<f8", "float32")
        self.assert_array_refused("q", self.q.astype(np.float16), "float16", "float32")
        self.assert_array_refused("q", self.q.astype(">f4"), ">f4")
        self.assert_array_refused("q", np.array([[{}]], dtype=object), "|O")
        self.write({}, q=self.q)
        self.assert_array_refused("mask", np.zeros(self.shape.full(), np.float32), "float32", "bool or uint8")
        (self.folder / "mask.npy").unlink()
        self.assert_array_refused("kv_lens", np.zeros(2, np.float32), "float32", "int32")
        self.assert_array_refused("kv_lens", np.array([5, 2**31]), "2147483648", "fit int32")
        self.assert_array_refused("q", np.asfortranarray(self.q), "Fortran")

    def test_lengths_out_of_range(self):
        for value in -1, 38:
            self.write({}, kv_lens=np.array([5, value], np.int32))
            self.assert_refused(2, f"kv_lens[1] is {value}", "0..37")

    def test_unsupported(self):
        q, k, v = make_qkv(Shape(head_dim=641))
        self.write({}, q=q, k=k)
        self.assert_refused(3, "head_dim is 641", "640")
        self.write({}, q=self.q, k=self.k)
        row = "attention_prefill_bf16_dany_paged_avx2"
        if row in self.call("kernels").stdout:
            self.assert_refused(3, row, "dtype is f32", command=["--kernel", row])

    def test_broken_npy(self):
        good = (self.folder / "k.npy").read_bytes()
        header = good[10:128].decode()

        def with_header(text, version=1):
            return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text.encode() + good[128:]

        for broken, word in [
            (b"", "header"), (good[:7], "header"), (good[:60], "header"), (good[:-1], "bytes"), (good + b"x", "bytes"),
            (b"PK" + good[2:], "magic"), (with_header(header, 3), "version is 3"),
            (good[:8] + b"\xff\xff" + good[10:128], "header"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + good[12:], "header"),
            (with_header(header.replace("37", "-37")), "whole number"),
            (with_header(header.replace("37", "9" * 30)), "2^63"),
            (with_header(header.replace("37", "9" * 18)), "bytes"),
            (with_header(header.replace("37", "3 7")), "lacks"),
            (with_header(header.replace("'shape'", "'shipe'")), "shipe"),
            (with_header(header.replace("False", "Maybe")), "fortran_order"),
            (with_header(header.replace("}", "} {")), "goes on"),
            (with_header("{" * 50), "lacks"), (with_header("{'descr"), "lacks"), (with_header("{}"), "must have"),
            (with_header("{'descr': '<f4', 'shape': (" + "1, " * 40 + "), 'fortran_order': False}"), "32 extents"),
        ]:
            with self.subTest(broken[:150]):
                (self.folder / "k.npy").write_bytes(broken)
                self.assert_refused(2, "k.npy", word)

    def test_empty_arrays_with_huge_extents(self):
        extents = (2**31 - 1, 2**31 - 1, 2**31 - 1, 0)
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {extents}, }}"
        for name in "q", "k", "v":
            content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
            (self.folder / f"{name}.npy").write_bytes(content)
        self.assert_refused(2, "2147483647")

    def test_command_line(self):
        for command, words in [
            (["--kernel", "attention_none"], ("attention_none", "heed kernels")),
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
        done = self.call("check", self.folder, "--repeat", "2")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("not expected: 2 --repeat", done.stderr)
        self.assertEqual(self.call("run", self.folder, "--device", "cpu").returncode, 0)
        for words, named in ([], "subcommand is required"), (["walk"], "walk"), (["run"], "CASE_DIR is required"), (["kernels", "x"], "x"):
            with self.subTest(words):
                done = self.call(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(named, done.stderr)
                self.assertIn("Usage: heed", done.stderr)

    def test_no_device(self):
        # Without a driver, or in a build without CUDA rows.
        environment = {**os.environ, "LD_LIBRARY_PATH": "", "HEED_FORCE_KERNEL": ""}
        self.write({"dtype": "f16"}, **{name: array.astype(np.float16) for name, array in
                                        [("q", self.q), ("k", self.k), ("v", self.v)]})
        if not ctypes.util.find_library("cuda"):
            self.assert_refused(3, "CUDA", command=["--device", "cuda"], call_options={"env": environment})

    def test_output_that_cannot_be_written(self):
        # The limit is below the size of out.npy; restore_signals would make it a deadly signal.
        self.assert_refused(2, "out.npy", "cannot be written", call_options={
            "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150)), "restore_signals": False})

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_folder_without_write_permission(self):
        for name in self.outputs():
            (self.folder / name).unlink()
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        self.assert_refused(2, "out.npy", "cannot be written")

    def test_folder_that_is_none(self):
        done = self.call("run", self.folder / "missing")
        self.assertEqual(done.returncode, 2)
        self.assertIn("missing", done.stderr)
        self.assertFalse((self.folder / "missing").exists())

    def test_output_name_is_taken_by_a_folder(self):
        (self.folder / "out.npy").unlink()
        (self.folder / "out.npy").mkdir()
        done = self.call("run", self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("out.npy is a folder", done.stderr)
        self.assertEqual(self.outputs(), ["out.npy"])
        self.assertEqual(os.listdir(self.folder / "out.npy"), [])


if __name__ == "__main__":
    main()
