"""What the compiler made of the default table: read off the lowered code, the assembly and the registry lines."""
import itertools
import pathlib
import re
import sys
import unittest

DIR = pathlib.Path(sys.argv.pop(1))
ISAS = ("x86_64", "avx2", "avx512")
TYPES = ("f32", "f16", "bf16", "f32_kvi8", "f16_kvi8", "bf16_kvi8")


def rows(*kernels):
    """Those of CPUs."""
    names = (p.stem for kernel in kernels for p in DIR.glob(f"{kernel}_*.inc"))
    return sorted(name for name in names if not re.search(r"_sm\d+(_wide)?$", name))


ROWS = rows("attention_prefill", "attention_decode")
OPS = rows("attention_probs", "dropout_mask", "kv_append", "merge_states", "rope")


def loops(text, name):
    """The bodies of the loops of a .stmt file over a variable whose name contains `name`."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.match(r" *for \(.*" + re.escape(name), line):
            indent = len(line) - len(line.lstrip())
            body = []
            for following in lines[i + 1:]:
                if following.strip() and len(following) - len(following.lstrip()) <= indent:
                    break
                body.append(following)
            yield "\n".join(body)


def blocks(assembly):
    """Basic blocks of an assembly file that end in a jump to their own start: innermost loops."""
    for match in re.finditer(r"^(\.LBB\w+):(.*?)^(?=\.LBB\w+:|# %bb)", assembly, re.M | re.S):
        if re.search(r"\tj\w+\t" + re.escape(match.group(1)) + r"\b", match.group(2)):
            yield match.group(2)


class Kernels(unittest.TestCase):
    def test_table_is_there(self):
        self.assertGreaterEqual(len(ROWS), 200)
        general = [("attention_prefill", "alibi_bias_dropout_mask_softcap_paged"),
                   ("attention_decode", "alibi_bias_dropout_gqa_mask_softcap_paged")]
        for (phase, features), types, isa in itertools.product(general, TYPES, ISAS):
            self.assertIn(f"{phase}_{types}_dany_{features}_{isa}", ROWS)

    def test_scratch_is_bounded(self):
        for row in ROWS:
            fields = (DIR / f"{row}.inc").read_text().split(", ")
            self.assertGreaterEqual(int(fields[11]), 0, row)

    def test_no_allocation_in_the_key_loop(self):
        for row in ROWS:
            found = 0
            for body in loops((DIR / f"{row}.stmt").read_text(), ".steps_"):
                found += 1
                self.assertNotRegex(body, r"allocate .* in (Heap|Stack)|halide_malloc", row)
            self.assertGreaterEqual(found, 2, row)

    def test_no_condition_in_the_register_tiles(self):
        for row in ROWS:
            tile = "product_full" if "_prefill_" in row else "dot_tile_full"
            text = (DIR / f"{row}.stmt").read_text()
            for name in (tile + ".s1.", "value_tile_full.s1."):
                for body in loops(text, name):
                    self.assertNotRegex(body, r"\bif \(", f"{row}: {name}")

    def test_instruction_sets(self):
        for row in ROWS:
            assembly = (DIR / f"{row}.s").read_text()
            if row.endswith("x86_64"):
                self.assertNotRegex(assembly, r"%[yz]mm|\tv[a-z]+ps\t", row)
            else:
                self.assertIn("vfmadd", assembly, row)
                self.assertEqual("%zmm" in assembly, row.endswith(("avx512", "avx512bf16", "amx")), row)

    def test_register_tile_of_prefill(self):
        # 3 vectors of rows x 8 keys x 2 steps of d, the whole loop: nothing else computes, nothing is spilled.
        assembly = (DIR / "attention_prefill_f32_d128_contiguous_avx512.s").read_text()
        tiles = [b for b in blocks(assembly) if b.count("vfmadd231ps") == 48]
        self.assertGreaterEqual(len(tiles), 2)  # logits, values
        for tile in tiles:
            self.assertNotRegex(tile, r"vmovu?a?ps\t%zmm\d+, .*\(%rsp")

    def test_register_tile_of_bf16_dots(self):
        # 3 vectors of rows x 8 keys x 4 pairs of d, x 8 values of d; nothing is spilled or stored.
        assembly = (DIR / "attention_prefill_bf16_d128_paged_avx512bf16.s").read_text()
        tiles = [b for b in blocks(assembly) if b.count("vdpbf16ps") in (96, 24)]
        self.assertGreaterEqual(len(tiles), 4)  # logits, values; full, masked
        for tile in tiles:
            self.assertNotRegex(tile, r"vmovu?a?ps\t%zmm\d+, .*\(%rsp")

    def test_matrix_tiles(self):
        # 2 x 2 tiles of sums (1 x 4 where there is an odd number) stay in registers over the inner loop.
        for row in (r for r in rows("attention_prefill", "linear_bf16") if r.endswith("amx")):
            assembly = (DIR / f"{row}.s").read_text()
            tiles = [b for b in blocks(assembly) if "tdpbf16ps" in b]
            self.assertTrue(tiles, row)
            for tile in tiles:
                self.assertIn((tile.count("tdpbf16ps"), tile.count("tileloadd")), [(4, 4), (4, 5), (2, 3)], row)
            self.assertEqual(assembly.count("tilestored"), assembly.count("tilezero"), row)


class Operations(unittest.TestCase):
    def test_table_is_there(self):
        self.assertEqual(len(OPS), 2 * (6 + 1 + 3 + 3 + 3))
        for row in OPS:
            self.assertTrue((DIR / f"{row}.inc").read_text().startswith(f"HEED_OP({row}, "), row)

    def test_no_allocation(self):
        for row in OPS:
            self.assertNotRegex((DIR / f"{row}.s").read_text(), r"halide_(malloc|do_par_for)", row)

    def test_instruction_sets(self):
        for row in OPS:
            assembly = (DIR / f"{row}.s").read_text()
            self.assertNotIn("%zmm", assembly, row)
            self.assertEqual("%ymm" in assembly, row.endswith("avx2"), row)
            if "_f16_" in row:
                self.assertEqual("vcvtph2ps" in assembly, row.endswith("avx2"), row)

    def test_philox_multiplies_in_vectors(self):
        # The loop over 8 counters: 2 multiplications per round and four lanes of 64 bits, less what the loop leaves
        # unchanged.
        counts = [b.count("vpmuludq") for b in blocks((DIR / "dropout_mask_u8_avx2.s").read_text())]
        self.assertTrue(30 < max(counts) <= 40, counts)


unittest.main()
