"""Bad input to heed_generate: exit 1, a message with key, value and what is allowed, and nothing written."""
import os
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
            ({"schedule": "fast"}, ["schedule", "'fast'", "x86, default"]),
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


unittest.main()
