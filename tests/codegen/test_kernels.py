"""What the compiler made of the default table: read off the lowered code, the machine code and the registry lines.

test_kernels.py DIR ISA;... ISA;... : the folder of the kernels, the instruction sets of CPUs that they are for, and those that
prefill and decode are for."""
import itertools
import pathlib
import re
import subprocess
import sys
import unittest

DIR = pathlib.Path(sys.argv[1])
ISAS, ATTENTION_ISAS = (argument.split(";") for argument in sys.argv[2:])
del sys.argv[1:]
TYPES = ("f32", "f16", "bf16", "f32_kvi8", "f16_kvi8", "bf16_kvi8")


def of_isa(isa):
    """Marks a test of kernels of that instruction set, which a build need not have."""
    return unittest.skipUnless(isa in ISAS, f"the build has no kernels of {isa}")


def kernels(*kernels):
    """Those of CPUs."""
    names = (p.stem for kernel in kernels for p in DIR.glob(f"{kernel}_*.inc"))
    return sorted(name for name in names if not re.search(r"_sm\d+(_wide)?$", name))


KERNELS = kernels("attention_prefill", "attention_decode")
OPS = kernels("attention_probs", "dropout_mask", "kv_append", "merge_states", "rope")


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


def machine_code(kernel):
    """Lines "address:\topcode operands" and relocations."""
    return subprocess.run(["objdump", "-dr", "--no-show-raw-insn", DIR / f"{kernel}.o"], check=True, capture_output=True, text=True).stdout


def innermost_loops(code):
    """What is between a jump and its target before it, where no other jump does."""
    places, jump = {}, 0  # index of the line of each address; of the jump before
    lines = code.splitlines()
    for index, line in enumerate(lines):
        if line.endswith(">:"):
            places, jump = {}, index
        elif match := re.match(r" *([0-9a-f]+):\t(?:(j\w+) +([0-9a-f]+) <)?", line):
            places[match[1]] = index
            if match[2]:
                if places.get(match[3], -1) > jump:
                    yield "\n".join(lines[places[match[3]]:index])
                jump = index


class Kernels(unittest.TestCase):
    def test_table_is_there(self):
        if set(ATTENTION_ISAS) >= {"avx2", "avx512"}:
            self.assertGreaterEqual(len(KERNELS), 200)
        general = [("attention_prefill", "alibi_bias_dropout_mask_softcap_paged"),
                   ("attention_decode", "alibi_bias_dropout_gqa_mask_softcap_paged")]
        for (phase, features), types, isa in itertools.product(general, TYPES, {"x86_64", "avx2", "avx512"} & set(ATTENTION_ISAS)):
            self.assertIn(f"{phase}_{types}_dany_{features}_{isa}", KERNELS)

    def test_scratch_is_bounded(self):
        for kernel in KERNELS:
            fields = (DIR / f"{kernel}.inc").read_text().split(", ")
            self.assertGreaterEqual(int(fields[11]), 0, kernel)

    def test_no_allocation_in_the_key_loop(self):
        for kernel in KERNELS:
            found = 0
            for body in loops((DIR / f"{kernel}.stmt").read_text(), ".steps_"):
                found += 1
                self.assertNotRegex(body, r"allocate .* in (Heap|Stack)|halide_malloc", kernel)
            self.assertGreaterEqual(found, 2, kernel)

    def test_no_condition_in_the_register_tiles(self):
        for kernel in KERNELS:
            tile = "product_full" if "_prefill_" in kernel or kernel.endswith("_wide") else "dot_tile_full"
            text = (DIR / f"{kernel}.stmt").read_text()
            for name in (tile + ".s1.", "value_tile_full.s1."):
                for body in loops(text, name):
                    self.assertNotRegex(body, r"\bif \(", f"{kernel}: {name}")

    def test_instruction_sets(self):
        for kernel in KERNELS:
            code = machine_code(kernel)
            if kernel.endswith("x86_64"):
                self.assertNotRegex(code, r"%[yz]mm|\tv[a-z]+ps ", kernel)
            else:
                self.assertIn("vfmadd", code, kernel)
                self.assertEqual("%zmm" in code, re.sub("_(wide|whole)$", "", kernel).endswith(("avx512", "avx512bf16", "amx")), kernel)

    def check_register_tiles(self, kernel, instruction, counts, least):
        """Nothing else computes in the innermost loops with so many of the instruction, and no sum is spilled."""
        loops_of_kernel = list(innermost_loops(machine_code(kernel)))
        for count in counts:
            tiles = [b for b in loops_of_kernel if b.count(instruction) == count]
            self.assertGreaterEqual(len(tiles), least, f"{kernel}: {count}")
            for tile in tiles:
                self.assertNotRegex(tile, r"vmovu?a?ps +%[yz]mm\d+,.*\(%rsp", f"{kernel}: {count}")

    @unittest.skipUnless("avx2" in ATTENTION_ISAS, "the build has no attention kernels of AVX2")
    def test_register_tile_of_prefill_in_16_registers(self):
        # 2 and 3 vectors of rows x 4 keys x 4 steps of d; 1 to 3 x 4 elements x 2 keys or, in a masked step, 1.
        for kernel in ("attention_prefill_f32_d64_contiguous_avx2", "attention_decode_f32_d128_gqa_contiguous_avx2_wide"):
            self.check_register_tiles(kernel, "vfmadd231ps", (32, 48), 2)
            self.check_register_tiles(kernel, "vfmadd231ps", (4, 8, 12, 16, 24), 1)

    @unittest.skipUnless("avx2" in ATTENTION_ISAS, "the build has no attention kernels of AVX2")
    def test_sums_of_decode_in_registers(self):
        # Values: 2 rows x 4 vectors; head by head in a loop over keys that prefetches, whole keys four at once.
        for kernel in ("attention_decode_f32_d128_gqa_contiguous_avx2", "attention_decode_f32_d128_gqa_paged_avx2"):
            heads = [b for b in innermost_loops(machine_code(kernel)) if b.count("vfmadd") == 8 and "prefetch" in b]
            self.assertTrue(heads, kernel)
            for loop in heads:
                self.assertNotRegex(loop, r"vmovu?a?ps +%ymm\d+,.*\(", kernel)
            self.check_register_tiles(kernel, "vfmadd", (32,), 1)

    def test_decode_asks_for_keys_and_values(self):
        # Rows as lanes: in bursts between parts of a product; whole keys, of several rows: in the loops over heads.
        wide = [r for r in kernels("attention_decode") if r.endswith("_wide") and "_dany_" not in r and "_amx" not in r]
        whole = [r for r in kernels("attention_decode") if r.endswith("_whole") and "_gqa_" in r]
        self.assertTrue(wide or ATTENTION_ISAS == ["x86_64"])
        for kernel, names in [(r, (".outer.burst",) * 2) for r in wide] + [(r, ("dots_full.s0.row_block", "value_tile_full.s1.")) for r in whole]:
            text = (DIR / f"{kernel}.stmt").read_text()
            for tensor, name in zip("kv", names):
                asks = [body for body in loops(text, name) if re.search(rf"prefetch\S*\(.*reinterpret<uint64>\({tensor}\)", body)]
                if kernel in whole:  # head by head they ask in loops over keys
                    asks = [body for body in asks if "for (" not in body]
                self.assertTrue(asks, (kernel, tensor))

    def test_decode_asks_for_the_next_head(self):
        # Head by head, in loops over keys: by the table of the task's heads, which tells the last one. Rows that are copied
        # are not asked for.
        asking = 0
        for kernel in (r for r in kernels("attention_decode") if not re.search(r"_(wide|whole|mask|bias|kvi8|dropout)(_|$)", r)):
            text = (DIR / f"{kernel}.stmt").read_text()
            for tensor, name in ("k", "dots_full.s0.k.ko"), ("v", "numbers_full$x.key"):
                asks = [line for body in loops(text, name) for line in body.splitlines()
                        if "prefetch" in line and f"reinterpret<uint64>({tensor})" in line]
                asking += bool(asks)
                for line in asks:
                    self.assertIn("block_heads", line, (kernel, tensor))
        self.assertGreater(asking, 10)

    @unittest.skipUnless("avx2" in ATTENTION_ISAS, "the build has no attention kernels of AVX2")
    def test_values_of_one_vector_of_rows_are_two_tiles_at_once(self):
        text = (DIR / "attention_prefill_f32_d64_contiguous_avx2.stmt").read_text()
        copies = list(loops(text, "block_out_full.s1.d.db"))
        others = [body for body in copies if "value_tile_full.other" in body]
        self.assertEqual(len(others), 1)  # of as many copies as a block has vectors
        self.assertEqual(len(copies), 3)

    def test_tiles_look_up_one_number_a_key(self):
        for kernel in (r for r in kernels("attention_decode_f32") if r.endswith("_wide") and "_paged_" in r):
            text = (DIR / f"{kernel}.stmt").read_text()
            for tensor, tile in ("k", "product_full"), ("v", "value_tile_full"):
                sums = [line for line in text.splitlines() if re.match(rf" *{tile}\[.*\b{tensor}\[", line)]
                self.assertTrue(sums, (kernel, tile))
                for line in sums:
                    self.assertIn(f"{tensor}_places_of_slots_full[", line, kernel)
                    self.assertNotIn("_slot_stride", line, kernel)

    @of_isa("avx512")
    def test_register_tile_of_prefill(self):
        # 1 to 3 vectors of rows x 8 keys x 2 steps of d, the whole loop: logits, values.
        self.check_register_tiles("attention_prefill_f32_d128_contiguous_avx512", "vfmadd231ps", (16, 32, 48), 2)

    @of_isa("avx512bf16")
    def test_register_tile_of_bf16_dots(self):
        # 3 vectors of rows x 8 keys x 4 pairs of d, x 8 values of d; full, masked.
        self.check_register_tiles("attention_prefill_bf16_d128_paged_avx512bf16", "vdpbf16ps", (24, 96), 2)

    @of_isa("amx")
    def test_matrix_tiles(self):
        # 2 x 2 tiles of sums (1 x 4 or 1 x 2 where there is an odd number) stay in registers over the inner loop, which
        # may be unrolled and may load the sums that it adds to.
        blocks = [(sums * steps, operands * steps + more) for sums, operands in ((4, 4), (4, 5), (2, 3))
                  for steps in range(1, 11) for more in (0, sums)]
        of_amx = [r for r in kernels("attention_prefill", "attention_decode") if re.search("amx(_wide)?$", r)]
        self.assertTrue(any(r.endswith("wide") for r in of_amx))
        for kernel in of_amx:
            code = machine_code(kernel)
            tiles = [b for b in innermost_loops(code) if "tdpbf16ps" in b]
            self.assertTrue(tiles, kernel)
            for tile in tiles:
                self.assertIn((tile.count("tdpbf16ps"), tile.count("tileloadd")), blocks, kernel)
                self.assertNotRegex(tile, r"tilestored .*\(%rsp", kernel)

    @of_isa("amx")
    def test_streamed_operands_go_past_l1(self):
        of_amx = (r for r in kernels("attention_prefill", "linear_bf16", "attention_scores_bf16") if r.endswith("amx"))
        for kernel in of_amx:
            loads, products, unknown, both = {}, 0, 0, 0
            pattern = r"(tileloadd\w*|tilezero) .*%tmm(\d)|tdpbf16ps %tmm(\d),%tmm(\d)|\s(jmp) "
            for load, into, second, first, jump in re.findall(pattern, machine_code(kernel)):
                if jump:
                    loads = {}  # what follows is reached from elsewhere
                elif load:
                    loads[into] = load
                elif loads.get(first) == loads.get(second) == "tilezero":
                    pass  # it keeps the unit awake (KeepAwake)
                elif first in loads and second in loads:
                    self.assertIn((loads[first], loads[second]), (("tileloaddt1", "tileloadd"), ("tileloaddt1",) * 2), kernel)
                    both += loads[second] == "tileloaddt1"
                    products += 1
                else:
                    unknown += 1
            self.assertLess(unknown, 10 + products // 20, kernel)  # the first ones after a jump
            self.assertGreater(products, 0, kernel)
            # Steps of a panel of W that does not fit into L1, in the loops without and with limits of the results.
            self.assertEqual(both, 8 if kernel.startswith(("linear", "attention_scores")) and "_r32_" in kernel else 0, kernel)

    @of_isa("amx")
    def test_weights_are_made_beside_products(self):
        # Two vectors of them after each product, or in loops where the head dim comes at run time.
        for kernel in (r for r in kernels("attention_prefill") if r.endswith("amx")):
            between = re.split(r"tdpbf16ps.*", machine_code(kernel))[1:-1]
            woven = sum(0 < code.count("vcvttps2udq") <= 8 for code in between)
            self.assertGreaterEqual(woven, 4 if "_dany_" in kernel else 40, kernel)

    @of_isa("amx")
    def test_dense_results_are_made_beside_products(self):
        for kernel in (r for r in kernels("linear_bf16", "attention_scores_bf16") if r.endswith("amx")):
            text = (DIR / f"{kernel}.stmt").read_text()
            beside = [body for body in loops(text, "sum.tile_steps") if "tile_matmul" in body]
            self.assertEqual(len(beside), 4, kernel)  # with clip or without, with prefetches or without
            for steps in beside:
                self.assertIn((steps.count("tile_matmul"), steps.count("tile_load")), ((4, 4), (2, 3)), kernel)
                self.assertNotIn("tile_store", steps, kernel)
                self.assertEqual(len(re.findall(r"for \(out\.s0\.row\.r", steps)), 1, kernel)
            streamed = [body for body in loops(text, "sum.streamed_steps") if "tile_matmul" in body]
            self.assertEqual(len(streamed), 2 if "_r32_" in kernel else 0, kernel)
            for steps in streamed:
                self.assertEqual((steps.count("tile_matmul"), steps.count("tile_load")), (4, 4), kernel)
                self.assertEqual(len(re.findall(r"for \(out\.s0\.row\.r", steps)), 1, kernel)

    def test_tasks_of_prefill_ask_for_rows(self):
        # For rows of out and of the next task's q, beside the products of each kind of step; with matrix tiles, the steps that
        # are not woven.
        for kernel in kernels("attention_prefill"):
            text, asks = (DIR / f"{kernel}.stmt").read_text(), (DIR / f"{kernel}.inc").read_text().split(", ")[-2] == "1"
            steps = [["weight_pairs_masked.s0.k"]] if kernel.endswith("amx") else [
                [f"{logits}_{step}.s0.k.ko" for logits in ("logits", "raw_logits")] for step in ("full", "masked")]
            for either in steps:
                counts = [len(re.findall(r"for \(asked_row", body)) for name in either for body in loops(text, name)]
                self.assertEqual(2 in counts, asks, kernel)

    def test_maxima_of_lanes_are_taken_by_halves(self):
        for kernel in KERNELS:
            self.assertNotIn("(float32)vector_reduce_max", (DIR / f"{kernel}.stmt").read_text(), kernel)


class Operations(unittest.TestCase):
    def test_table_is_there(self):
        self.assertEqual(len(OPS), len({"x86_64", "avx2"} & set(ISAS)) * (3 + 1 + 3 + 3 + 3) + 3 * ("avx512" in ISAS))
        for kernel in OPS:
            self.assertTrue((DIR / f"{kernel}.inc").read_text().startswith(f"HEED_OP({kernel}, "), kernel)

    def test_no_allocation(self):
        """Except attention weights: a row of scores and one of weights for each form of the result, and one of weights whose
        scores are computed where they are read, in the caller's scratch."""
        for kernel in OPS:
            code = machine_code(kernel)
            self.assertNotIn("halide_do_par_for", code, kernel)
            rows = 0 if not kernel.startswith("attention_probs_") else 3 if "_f32_" in kernel else 5
            self.assertEqual(len(re.findall(r"\bhalide_malloc\b", code)), rows, kernel)

    def test_instruction_sets(self):
        for kernel in OPS:
            code = machine_code(kernel)
            self.assertEqual("%zmm" in code, kernel.endswith("avx512"), kernel)
            self.assertEqual("%ymm" in code, not kernel.endswith("x86_64"), kernel)
            if "_f16_" in kernel:
                self.assertEqual("vcvtph2ps" in code, not kernel.endswith("x86_64"), kernel)

    @of_isa("avx2")
    def test_philox_multiplies_in_vectors(self):
        # The loop over 8 counters: 2 multiplications per round and four lanes of 64 bits, less what the loop leaves
        # unchanged.
        counts = [b.count("vpmuludq") for b in innermost_loops(machine_code("dropout_mask_u8_avx2"))]
        self.assertTrue(30 < max(counts) <= 40, counts)


unittest.main()
