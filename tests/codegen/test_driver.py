"""Bad input to heed_generate: exit 1, a message with key, value and what is allowed, and nothing written. Lists of kernels."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

GENERATE = sys.argv.pop(1)
GOOD = {"name": "k", "phase": "prefill", "head_dim": "32", "isa": "avx2"}


class Driver(unittest.TestCase):
    def run_driver(self, **changes):
        with tempfile.TemporaryDirectory() as out:
            arguments = {**GOOD, **changes, "out": out}
            command = [GENERATE] + [f"{k}={v}" for k, v in arguments.items() if v is not None]
            result = subprocess.run(command, capture_output=True, text=True)
            return result, sorted(os.listdir(out))

    def test_writes_all_files(self):
        result, files = self.run_driver()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(files, ["k.inc", "k.o"])
        result, files = self.run_driver(write="stmt,assembly")
        self.assertEqual(files, ["k.inc", "k.o", "k.s", "k.stmt"], result.stderr)

    def test_tiles_that_bursts_do_not_divide(self):
        # Bursts of one tile: none, of parts of a row, a row, several rows.
        for head_dim, key_tile in (("64", "1"), ("576", "2"), ("64", "8"), ("72", "8")):
            tuned = {"phase": "decode", "features": "gqa", "schedule": "wide", "head_dim": head_dim, "key_tile": key_tile}
            result, files = self.run_driver(**tuned)
            self.assertEqual(files, ["k.inc", "k.o"], result.stderr)

    def test_places_looked_up_ahead(self):
        # Of loops over keys and over heads, each in its own distance: no index leaves the table.
        tuned = {"phase": "decode", "features": "gqa", "storage": "paged", "prefetch_keys": "2", "whole_keys": "8", "write": "stmt"}
        with tempfile.TemporaryDirectory() as out:
            arguments = {**GOOD, **tuned, "isa": "x86_64", "out": out}
            subprocess.run([GENERATE] + [f"{k}={v}" for k, v in arguments.items()], check=True, capture_output=True)
            with open(os.path.join(out, "k.stmt"), encoding="utf-8") as file:
                text = file.read()
        sizes = [int(size) for size in re.findall(r"allocate slots_full\.0\[int32 \* (\d+)\]", text)]
        self.assertEqual(set(sizes), {40})  # 32 keys of a block and 8

    def test_refusals(self):
        cases = [
            ({"head_dim": "0"}, ["head_dim", "'0'", "1..640"]),
            ({"head_dim": "641"}, ["head_dim", "'641'", "1..640"]),
            ({"head_dim": "-3"}, ["head_dim", "'-3'", "1..640"]),
            ({"head_dim": "64x"}, ["head_dim", "'64x'"]),
            ({"head_dim": "any", "head_dim_v": "32"}, ["head_dim_v", "32", "0 exactly when"]),
            ({"phase": "both"}, ["phase", "'both'", "prefill, decode"]),
            ({"isa": "avx1024"}, ["isa", "'avx1024'", "avx512"]),
            ({"dtype": "f64"}, ["dtype", "'f64'", "f32"]),
            ({"features": "magic"}, ["features", "'magic'", "bias"]),
            ({"features": "gqa"}, ["features", "'gqa'", "decode only"]),
            ({"schedule": "fast"}, ["schedule", "'fast'", "x86, wide, whole, default"]),
            ({"schedule": "wide"}, ["schedule = wide is not allowed but in decode, with the feature gqa"]),
            ({"schedule": "wide", "phase": "decode", "features": "gqa_mask"}, ["schedule = wide is not allowed with", "mask"]),
            ({"phase": "decode", "dtype": "bf16", "head_dim": "80", "isa": "avx512bf16"}, ["head_dim", "80", "a multiple of 32"]),
            ({"phase": "decode", "dtype": "f16", "kv_dtype": "f32"}, ["kv_dtype = f32 with dtype = f16 is not allowed"]),
            ({"schedule": "whole"}, ["schedule = whole is not allowed but in decode, with kv_dtype = dtype"]),
            ({"schedule": "whole", "phase": "decode", "kv_dtype": "i8"}, ["schedule = whole is not allowed", "kv_dtype = dtype"]),
            ({"schedule": "whole", "phase": "decode", "features": "mask"}, ["schedule = whole is not allowed", "with mask"]),
            ({"colour": "red"}, ["colour", "red"]),
            ({"phase": None}, ["phase", "missing"]),
            ({"score_mod": "near"}, ["score_mod", "'near'", "sets none of ScoreMod's logit, visible and block_visible"]),
            ({"kv_block": "100"}, ["kv_block", "100", "masked_block (144) times 1..8"]),
            ({"row_block": "x"}, ["row_block", "'x'", "0..2147483647"]),
            ({"key_tile": "3"}, ["key_tile", "3", "1, 2, 4, 8, 16"]),
            ({"row_block": "48", "masked_block": "64", "kv_block": "512"}, ["kv_block", "512", "16384 logits"]),
            ({"prefetch_keys": "8"}, ["unknown", "prefetch_keys"]),
            ({"l2_bytes": "-1"}, ["l2_bytes", "'-1'"]),
            ({"write": "stmt,all"}, ["write", "'all'", "stmt, assembly"]),
            ({"parameters": "all"}, ["parameters", "'all'", "list"]),
        ]
        self.check_refusals(cases)

    def test_refuses_operations_that_the_table_lacks(self):
        linear = "op=linear, isa=avx2, dtype=f32, kv_dtype=f32"
        cases = [
            ({"op": "ropes"}, ["op = 'ropes' is not allowed: add, attention_backward"]),
            ({"isa": "avx512"}, ["isa = 'avx512' is not allowed with op=rope: x86_64, avx2, sm75"]),
            ({"dtype": "u8"}, ["dtype = 'u8' is not allowed with op=rope, isa=avx2: f32, f16, bf16"]),
            ({"dtype": None}, ["dtype", "missing"]),
            ({"op": "kv_append"}, ["kv_dtype = 'f32' is not allowed with op=kv_append, isa=avx2, dtype=f32: i8"]),
            ({"op": "linear"}, [f"rows = '0' is not allowed with {linear}: 1, 2, 4, 6"]),
            ({"op": "linear", "rows": "13"}, [f"rows = '13' is not allowed with {linear}: 1, 2, 4, 6"]),
            ({"rows": "2"}, ["rows = '2' is not allowed with op=rope"]),
            ({"head_dim": "64"}, ["head_dim = '64' is not allowed with op=rope"]),
            ({"op": "clip"}, ["isa = 'avx2' is not allowed with op=clip: sm75"]),
            ({"colour": "red"}, ["unknown argument colour=red"]),
        ]
        rope = {"op": "rope", "dtype": "f32", "phase": None, "head_dim": None}
        self.check_refusals([({**rope, **changes}, words) for changes, words in cases])

    def check_refusals(self, cases):
        for changes, words in cases:
            with self.subTest(**changes):
                result, files = self.run_driver(**changes)
                self.assertEqual(result.returncode, 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)
                self.assertEqual(files, [])


class Lists(unittest.TestCase):
    def list_of(self, function, words):
        return subprocess.run([GENERATE, f"list={function}", "k", *words.split()], capture_output=True, text=True)

    def test_what_serves_a_request(self):
        cases = [
            # No dot products with dropout, nor in decode of any but by the tiles of a group.
            ("PHASES prefill decode DTYPES bf16 HEAD_DIMS any ISAS amx FEATURES mask dropout",
             ["attention_prefill_bf16_dany_paged_amx", "attention_prefill_bf16_dany_mask_paged_amx",
              "attention_prefill_bf16_dany_dropout_mask_paged_avx512", "attention_decode_bf16_dany_contiguous_avx512",
              "attention_decode_bf16_dany_gqa_contiguous_avx512", "attention_decode_bf16_dany_gqa_paged_amx_wide",
              "attention_decode_bf16_dany_dropout_gqa_mask_contiguous_avx512"]),
            ("PHASES decode DTYPES f32 HEAD_DIMS 64 ISAS amx",
             ["attention_decode_f32_d64_contiguous_avx512", "attention_decode_f32_d64_contiguous_avx512_whole",
              "attention_decode_f32_d64_gqa_contiguous_avx512", "attention_decode_f32_d64_gqa_contiguous_avx512_wide",
              "attention_decode_f32_d64_gqa_contiguous_avx512_whole"]),
            ("PHASES decode DTYPES bf16 HEAD_DIMS 64 72 ISAS amx",
             ["attention_decode_bf16_d64_contiguous_avx512bf16", "attention_decode_bf16_d64_gqa_contiguous_avx512bf16",
              "attention_decode_bf16_d64_gqa_paged_amx_wide", "attention_decode_bf16_d72_contiguous_avx512",
              "attention_decode_bf16_d72_gqa_contiguous_avx512"]),
            # Tiles serve head dims that are no whole chunks by the kernel of any.
            ("PHASES prefill DTYPES bf16 HEAD_DIMS 64 72 20x111 ISAS amx",
             ["attention_prefill_bf16_d64_paged_amx", "attention_prefill_bf16_dany_paged_amx"]),
            ("PHASES prefill DTYPES bf16 HEAD_DIMS 72 ISAS avx512bf16",
             ["attention_prefill_bf16_d72_paged_avx512", "attention_prefill_bf16_kvf32_d72_contiguous_avx512"]),
            ("PHASES prefill DTYPES f16 HEAD_DIMS 64 ISAS x86_64", ["attention_prefill_f16_d64_paged_x86_64"]),
            # One kernel for two instruction sets.
            ("PHASES prefill DTYPES f32 HEAD_DIMS 64x32 ISAS amx avx512 FEATURES paged",
             ["attention_prefill_f32_d64x32_contiguous_avx512", "attention_prefill_f32_d64x32_paged_avx512"]),
            ("PHASES prefill DTYPES f16 HEAD_DIMS 64 ISAS avx2 FEATURES int8 causal SCORE_MOD far/near.x.cpp",
             ["attention_prefill_f16_d64_score_near_paged_avx2", "attention_prefill_f16_kvf32_d64_score_near_contiguous_avx2",
              "attention_prefill_f16_kvi8_d64_score_near_paged_avx2"]),
            ("PHASES decode DTYPES f32 f16 HEAD_DIMS any ISAS x86_64 avx2",
             ["attention_decode_f32_dany_contiguous_x86_64", "attention_decode_f32_dany_gqa_contiguous_x86_64",
              "attention_decode_f16_dany_contiguous_x86_64", "attention_decode_f16_dany_gqa_contiguous_x86_64",
              "attention_decode_f32_dany_contiguous_avx2", "attention_decode_f32_dany_gqa_contiguous_avx2",
              "attention_decode_f32_dany_gqa_contiguous_avx2_wide", "attention_decode_f16_dany_contiguous_avx2",
              "attention_decode_f16_dany_gqa_contiguous_avx2"]),
            ("PHASES decode DTYPES f32 bf16 HEAD_DIMS 576x512 ISAS avx512bf16",
             ["attention_decode_f32_d576x512_contiguous_avx512", "attention_decode_f32_d576x512_gqa_contiguous_avx512",
              "attention_decode_f32_d576x512_gqa_contiguous_avx512_wide", "attention_decode_bf16_d576x512_contiguous_avx512bf16",
              "attention_decode_bf16_d576x512_gqa_contiguous_avx512bf16",
              "attention_decode_bf16_d576x512_gqa_contiguous_avx512bf16_wide"]),
            ("PHASES decode DTYPES f32 f16 HEAD_DIMS 128 ISAS sm80",
             ["write_metadata_i32_sm75", "sequences_i32_sm75", "merge_splits_f32_sm75",
              "attention_decode_f32_d128_gqa_contiguous_sm75", "merge_splits_f16_sm75",
              "attention_decode_f16_d128_gqa_contiguous_sm80", "attention_decode_f16_d128_gqa_contiguous_sm80_wide"]),
            ("DTYPES bf16 ISAS amx OPS attention_probs kv_append",
             ["attention_probs_bf16_avx512", "attention_products_bf16_r32_amx", "attention_scores_bf16_r32_amx",
              "attention_scores_bf16_r12_avx512bf16", "attention_scores_f32_r6_avx512", "linear_rows_bf16_r16_amx",
              "linear_rows_bf16_r32_amx",
              *(f"linear_rows_bf16_r{rows}_avx512bf16" for rows in (1, 4, 8, 12)), "kv_append_bf16_kvi8_avx2",
              "rope_bf16_avx2"]),
            # What makes gradients of logits has the score function; plain kernels would serve none of its calls.
            ("DTYPES bf16 ISAS sm80 OPS attention_backward SCORE_MOD far/near.cpp",
             ["attention_backward_bf16_score_near_sm75", "attention_backward_bias_bf16_score_near_sm75",
              *(f"attention_backward_keys_bf16_score_near_d{dim}_sm80" for dim in (64, 128, 256)),
              *(f"attention_backward_queries_bf16_score_near_d{dim}_sm80" for dim in (64, 128, 256)),
              "attention_backward_sinks_bf16_sm75", "attention_backward_stats_bf16_sm75"]),
        ]
        for words, names in cases:
            with self.subTest(words):
                result = self.list_of("heed_add_kernels", words)
                self.assertEqual(result.stderr, "")
                self.assertEqual([line.split()[0] for line in result.stdout.splitlines()], [f"name={name}" for name in names])

    def test_lines_are_arguments(self):
        line = "name=attention_decode_f16_kvi8_d64x32_alibi_gqa_paged_avx2_default phase=decode dtype=f16 head_dim=64 " \
               "head_dim_v=32 features=alibi_gqa storage=paged isa=avx2 kv_dtype=i8 schedule=default extra_features=asan\n"
        words = "PHASE decode DTYPE f16 HEAD_DIM 64x32 FEATURES alibi_gqa STORAGE paged ISA avx2 KV_DTYPE i8 " \
                "SCHEDULE default EXTRA_FEATURES asan"
        self.assertEqual(self.list_of("heed_add_attention_kernels", words).stdout, line)
        line = "name=linear_f32_r4_avx2 op=linear dtype=f32 rows=4 isa=avx2\n"
        self.assertEqual(self.list_of("heed_add_op_kernels", "OP linear DTYPE f32 ROWS 4 ISA avx2").stdout, line)

    def test_all_operations(self):
        lines = self.list_of("heed_add_all_operations", "").stdout.splitlines()
        self.assertEqual(len(lines), len(set(lines)))
        self.assertGreater(len(lines), 200)
        self.assertIn("name=attention_backward_keys_f16_d64_sm80 op=attention_backward_keys dtype=f16 head_dim=64 isa=sm80", lines)

    def test_refusals(self):
        for function, words, why in [
            ("heed_add_kernels", "DTYPES f32", "heed_add_kernels(k): ISAS is missing"),
            ("heed_add_op_kernels", "OP rope DTYPE f32 ISA amx",
             "heed_add_op_kernels(k): isa = 'amx' is not allowed with op=rope: x86_64, avx2, sm75"),
            ("heed_add_attention_kernels", "PHASE decode HEAD_DIM 64 ISA avx2 SCORE_MOD 2.cpp",
             "heed_add_attention_kernels(k): SCORE_MOD 2.cpp is not allowed; its name without extension must be letters"),
            ("heed_add_op_kernels", "OP rope DTYPE f32 ISA sm75 SCORE_MOD near.cpp",
             "heed_add_op_kernels(k): SCORE_MOD is not allowed with OP rope, ISA sm75"),
            ("heed_add_attention_kernels", "PHASE prefill DTYPE f16 KV_DTYPE f32 HEAD_DIM 64 ISA avx2 x86_64",
             "heed_add_attention_kernels(k): KV_DTYPE f32 with DTYPE f16 is not allowed but with PHASE prefill, STORAGE contiguous"),
            ("kernels", "", "list = 'kernels' is not allowed: cpu_isas, heed_add_kernels"),
        ]:
            with self.subTest(why):
                result = self.list_of(function, words)
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assertTrue(result.stderr.startswith(why), result.stderr)


unittest.main()
