#!/usr/bin/env python3
"""What `heed run` says to bad types, storages and forms of scores: exit status, a message, and no output file."""

import numpy as np

from case_file import RefusalTest, Shape, headers, main
from stored_case import StoredCase

SHAPE = Shape(batch=2, q_len=5, kv_len=20)
FLAGS = {field.name for field in headers.struct("heed_problem") if field.type == "bool"} & {
    entry.name for entry in headers.entries("HEED_LOGIT_FIELDS")}


class StorageErrors(RefusalTest):
    def refuse(self, case, *words, without=(), status=2, **changes):
        """The case without some arrays and with others in place of its own is refused."""
        with self.subTest(words):
            files = {name: array for name, array in {**case.files, **changes}.items() if name not in without}
            self.write_afresh(case.problem, **files)
            self.assertEqual(self.call("check", self.case).returncode, status)
            self.leave_stale_outputs()
            self.assert_refused(status, *words)

    def make_case(self, **problem):
        """A case that runs."""
        q_lens = [5, 2] if problem.get("q_storage") == "varlen" else None
        case = StoredCase(SHAPE, problem, q_lens, [20, 9], page_size=8)
        self.write_afresh(case.problem, **case.files)
        self.assertEqual(self.call("run", self.case).returncode, 0)
        return case

    def refuse_each(self, case, name, rows):
        for array, *words in rows:
            self.refuse(case, f"{name} ", *words, **{name: array})

    def test_missing_arrays(self):
        for problem, names, word in [
            ({"q_storage": "varlen", "kv_storage": "varlen"}, ["cu_seqlens_q"], 'q_storage "varlen"'),
            ({"q_storage": "varlen", "kv_storage": "varlen"}, ["cu_seqlens_kv"], 'kv_storage "varlen"'),
            ({"kv_storage": "paged"}, ["page_table", "kv_lens"], 'kv_storage "paged"'),
            ({"kv_dtype": "i8"}, ["k_scale", "v_scale"], 'kv_dtype "i8"'),
        ]:
            case = self.make_case(**problem)
            for name in names:
                self.refuse(case, f"{name} is missing", word, without=[name])

    def test_arrays_without_a_use(self):
        plain, ragged = self.make_case(), self.make_case(q_storage="varlen", kv_storage="varlen")
        sums = np.array([0, 5, 10], np.int32)
        self.refuse(plain, "cu_seqlens_q is there", 'q_storage "varlen"', cu_seqlens_q=sums)
        self.refuse(plain, "cu_seqlens_kv is there", 'kv_storage "varlen"', cu_seqlens_kv=sums)
        self.refuse(plain, "page_table is there", 'kv_storage "paged"', page_table=np.zeros((2, 3), np.int32))
        self.refuse(ragged, "kv_lens is there", '"contiguous" or "paged"', kv_lens=np.array([20, 9], np.int32))
        for name in "k_scale", "v_scale":
            self.refuse(plain, f"{name} is there", 'kv_dtype "i8"', **{name: np.zeros((2, 20, 2), np.float32)})

    def test_prefix_sums(self):
        case = self.make_case(q_storage="varlen", kv_storage="varlen")
        for name, total, tokens in ("cu_seqlens_q", 7, "q"), ("cu_seqlens_kv", 29, "k"):
            self.refuse_each(case, name, [
                (np.array([1, 5, total]), "has 1 at 0", "start with 0"),
                (np.array([-1, 5, total]), "has -1 at 0", "start with 0"),
                (np.array([0, total + 1, total]), f"has {total} at 2 after {total + 1}", "never fall"),
                (np.array([0, -2, total]), "has -2 at 1 after 0", "never fall"),
                (np.array([0, -2**31, 2**31 - 1]), "has -2147483648 at 1", "never fall"),
                (np.array([0, 5, total - 1]), f"ends with {total - 1}", f"{total}, the tokens of {tokens}"),
                (np.array([0, 5, total + 1]), f"ends with {total + 1}", f"{total}, the tokens of {tokens}"),
                (np.array([0, 0, 0]), "ends with 0", f"{total}, the tokens of {tokens}"),
                (np.array([0, 5, 2**40]), "1099511627776", "fit int32"),
                (np.array([0, 5, total], np.float32), "F32", "I32"),
            ])
        self.refuse_each(case, "cu_seqlens_q", [
            (np.zeros(0, np.int32), "(0,)", "(batch + 1,)"),
            (np.zeros((3, 1), np.int32), "(3, 1)", "(batch + 1,)"),
        ])
        self.refuse(case, "cu_seqlens_kv", "(4,)", "(3,)", cu_seqlens_kv=np.array([0, 5, 20, 29]))
        self.refuse(case, "cu_seqlens_q ends with 0", cu_seqlens_q=np.zeros(1, np.int32))

    def test_varlen_shapes(self):
        case = self.make_case(q_storage="varlen", kv_storage="varlen")
        for name in "q", "k", "v":
            self.refuse(case, f"{name}", "3 axes, shd", **{name: case.files[name][None]})
        self.refuse(case, "v has extent 28 on axis s", "29", v=case.files["v"][:28])
        case = self.make_case(q_storage="varlen")
        self.refuse(case, "k has extent 1 on axis b", "2, as cu_seqlens_q", k=case.files["k"][:1])

    def test_max_q_len(self):
        for value in 4, -1:
            case = self.make_case(q_storage="varlen")
            case.problem["max_q_len"] = value
            self.refuse(case, f"max_q_len is {value}")

    def test_pages(self):
        case = self.make_case(kv_storage="paged")
        num_pages = len(case.files["k"])
        for at, value in ((0, 2), -1), ((1, 0), num_pages), ((1, 1), 2**31 - 1), ((0, 0), -2**31):
            table = case.files["page_table"].copy()
            table[at] = value
            self.refuse(case, f"page_table[{at[0]}][{at[1]}] is {value}", f"below num_pages, {num_pages}", page_table=table)
        self.refuse_each(case, "page_table", [
            (case.files["page_table"][0], "(4,)", "(2, max_pages_per_seq)"),
            (np.zeros((3, 4), np.int32), "(3, 4)", "(2, max_pages_per_seq)"),
            (np.zeros((2, 4), np.float32), "F32", "I32"),
            (np.full((2, 4), 2**31), "2147483648", "fit int32"),
        ])
        self.refuse(case, "kv_lens[0] is 20", page_table=case.files["page_table"][:, :2])
        for value in -1, 33:
            self.refuse(case, f"kv_lens[1] is {value}", "0..32", kv_lens=np.array([20, value], np.int32))
        empty = np.zeros((num_pages, 0, 2, 32), np.float32)
        self.refuse(case, "page_size is 0", k=empty, v=empty)
        none = np.zeros((0, 2**16, 2, 32), np.float32)
        self.refuse(case, "page_table", "(2, 32768)", "2^31-1 keys", k=none, v=none,
                    page_table=np.zeros((2, 2**15), np.int32))
        self.refuse(case, "page_table[0][0]", k=none, v=none, page_table=np.zeros((2, 4), np.int32))

    def test_scales(self):
        case = self.make_case(dtype="f16", kv_dtype="i8")
        for name in "k_scale", "v_scale":
            self.refuse_each(case, name, [
                (case.files[name].astype(np.float16), "F16", "F32"),
                (case.files[name][..., 0], "(2, 20)", "(2, 20, 2)"),
                (case.files[name][..., None], "(2, 20, 2, 1)", "(2, 20, 2)"),
                (np.ascontiguousarray(case.files[name].transpose(0, 2, 1)), "(2, 2, 20)", "(2, 20, 2)"),
            ])
        for name in "k", "v":
            self.refuse(case, f"{name}", "F16", "I8", **{name: case.files[name].astype(np.float16)})
            self.refuse(case, f"{name}", "U8", "I8", **{name: case.files[name].astype(np.uint8)})

    def test_element_types(self):
        for dtype, wrong, allowed in [
            ("f32", np.uint16, "holds BF16; it must hold F32"), ("f16", np.float32, "holds F32; it must hold F16"),
            ("bf16", np.float16, "holds F16; it must hold BF16"),
        ]:
            case = self.make_case(dtype=dtype)
            for name in "q", "k", "v":
                self.refuse(case, f"{name} {allowed}", **{name: np.zeros_like(case.files[name], wrong)})
        for dtype, wrong, allowed in [
            ("f32", np.float16, "holds F16; it must hold F32"), ("f16", np.uint8, "holds U8; it must hold F32 or F16"),
            ("bf16", np.float16, "holds F16; it must hold F32 or BF16"),
        ]:
            self.refuse(self.make_case(dtype=dtype), f"bias {allowed}", bias=np.zeros((1, 1, 1, 20), wrong))

    def test_rows_per_head(self):
        case = self.make_case()
        for name in "sink", "alibi_slopes":
            self.refuse_each(case, name, [
                (np.zeros(3, np.float32), "(3,)", "(4,)"), (np.zeros((4, 1), np.float32), "(4, 1)", "(4,)"),
                (np.zeros((), np.float32), "()", "(4,)"), (np.zeros(4, np.float16), "F16", "F32"),
                (np.zeros(4), "F64", "F32"),
            ])

    def test_mask_and_bias_of_ragged_sequences(self):
        case = self.make_case(q_storage="varlen", kv_storage="varlen")
        for name, dtype in ("mask", bool), ("bias", np.float32):
            self.refuse(case, f"{name}", "(2, 4, 7, 29)", "(2, 4, 5, 20)", **{name: np.ones((2, 4, 7, 29), dtype)})
        case = self.make_case(kv_storage="paged")
        self.refuse(case, "mask", "(1, 1, 5, 20)", "(2, 4, 5, 32)", mask=np.ones((1, 1, 5, 20), bool))

    def test_offsets(self):
        case = self.make_case()
        case.problem.update(position="explicit")
        self.refuse(case, "q_offsets", "(3,)", "(2,)", q_offsets=np.zeros(3, np.int32))
        self.refuse(case, "q_offsets", "F32", "I32", q_offsets=np.zeros(2, np.float32))

    def test_keys_of_the_problem(self):
        case = self.make_case()
        for problem, *words in [
            ({"kv_dtype": "f16"}, "k ", "F16"), ({"kv_dtype": "u8"}, 'kv_dtype is "u8"', '"i8"'),
            ({"q_storage": "ragged"}, 'q_storage is "ragged"', '"dense", "varlen"'),
            ({"kv_storage": "pages"}, 'kv_storage is "pages"', '"contiguous", "varlen", "paged"'),
            ({"softcap": 1e39}, "softcap is 1e+39", "finite"), ({"softcap": None}, "softcap is null", "finite"),
            ({"dropout": 0.5}, "dropout is 0.5", "object"), ({"dropout": {"p": -0.1}}, "dropout_p is -0.1", "0..1"),
            ({"dropout": {"p": "half"}}, 'dropout.p is "half"', "finite"),
            ({"dropout": {"seed": 2**64}}, "dropout.seed", "0..2^64-1"),
            ({"dropout": {"offset": 0.5}}, "dropout.offset is 0.5", "0..2^64-1"),
            ({"num_splits": -1}, "num_splits is -1"), ({"batch_invariant": "yes"}, 'batch_invariant is "yes"'),
            *(({name: 1}, f"{name} is 1", "true or false") for name in sorted(FLAGS)),
        ]:
            case.problem = problem
            self.refuse(case, *words)

    def test_types_and_storages_that_do_not_go_together(self):
        case = self.make_case()
        case.problem["kv_dtype"] = "f16"
        half = {name: case.files[name].astype(np.float16) for name in ("k", "v")}
        self.refuse(case, "kv_dtype is f16 (1)", "dtype or HEED_I8", **half)
        ragged = StoredCase(SHAPE, {"kv_storage": "varlen"}, None, [20, 9])
        self.refuse(ragged, "kv_storage is HEED_KV_VARLEN with dense queries")


if __name__ == "__main__":
    main()
