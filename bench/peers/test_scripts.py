"""What the scripts of `./dev bench --peers` make of goals, ratios, ceilings and shapes. No library is needed or measured."""
import types
import unittest

import goals
import plan
import report
import shapes

CEILINGS = {"gflops": {"FMA avx512": 200.0, "vdpbf16ps": 400.0}, "exp_gelems": {"FMA avx512": 10.0, "vdpbf16ps": 10.0},
            "best_unit": {"f32": "FMA avx512", "f16": "FMA avx512", "bf16": "vdpbf16ps"}, "dram_gbps": 20.0}


def outcome(measurement, ratios, ours_ms=1.0, work=(2e8, 0, 1000), reasons=None, failures=None):
    peers_ms = {name: min(of_peer) * ours_ms for name, of_peer in ratios.items()}
    return types.SimpleNamespace(measurement=measurement, kernel="kernel", ours_ms=ours_ms, ours_reason="", ratios=ratios, work=work,
                                 peers_ms=peers_ms, reasons=reasons or {}, failures=failures or {}, rounds=3, quiet_rounds=2)


def misses(*args, **more):
    return report.misses(outcome(*args, **more), {"ceilings": CEILINGS, "results": []})


class Goals(unittest.TestCase):
    def goal(self, case, dtype, has_amx=False, **more):
        return goals.goal_of(plan.Measurement("attention", case, dtype, **more), has_amx)

    def test_a_goal_is_that_of_the_line_and_the_machine(self):
        self.assertEqual(self.goal("p2k_gqa", "f32").ratio, 1.4)
        self.assertEqual(self.goal("p2k_gqa", "bf16").ratio, 2.0)
        self.assertEqual(self.goal("p2k_gqa", "bf16", has_amx=True), goals.Goal(2.5, 0.3, floor_counts=False))
        self.assertEqual(self.goal("p2k_gqa", "f32", has_amx=True), goals.Goal(1.4))
        self.assertEqual(self.goal("dk64_dv111", "f16").ratio, goals.F16)
        self.assertEqual(self.goal("softcap", "f32", isa="avx2").ratio, goals.AVX2)
        self.assertEqual(self.goal("linear_1x4096x4096", "f32"), goals.Goal(1.0, 0.85))
        self.assertEqual(self.goal("1x300x300_h8/8_d72", "bf16", like="d72").ratio, 1.5)

    def test_decoding_from_dram_is_held_to_the_floor(self):
        self.assertEqual(self.goal("d4k_gqa", "bf16", temperature="cold"), goals.Goal(1.0, floor=1.15, floor_counts=False))
        self.assertEqual(self.goal("d4k_g8_outside", "f32", temperature="cold").floor, 1.2)
        self.assertIsNone(self.goal("d4k_gqa", "f32", temperature="warm"))
        goal, ahead = self.goal("d4k_mqa", "f16", temperature="cold"), (1.1, 1.1, 1.1)
        self.assertEqual(goals.misses(goal, goals.Standing(ahead, share_of_floor=0.63)), [])
        self.assertEqual(goals.misses(goal, goals.Standing(ahead, share_of_floor=0.62)), ["1.6 of the floor"])
        self.assertEqual(goals.misses(goal, goals.Standing((0.9, 0.9, 0.9), share_of_floor=0.63)), ["ratio"])

    def test_what_has_no_goal(self):
        self.assertIsNone(self.goal("base_1k", "f32"))
        self.assertIsNone(self.goal("p2k_gqa", "f32", temperature="cold"))
        self.assertIsNone(self.goal("p2k_gqa", "bf16", kv="i8"))

    def test_the_75th_percentile_counts(self):
        goal = goals.Goal(1.4)
        self.assertEqual(goals.quartiles([5, 1, 2, 4, 3]), (2, 3, 4))
        self.assertEqual(goals.misses(goal, goals.Standing((1.0, 1.2, 1.4))), [])
        self.assertEqual(goals.misses(goal, goals.Standing((1.3, 1.35, 1.39))), ["ratio"])

    def test_most_of_the_floor_is_enough_above_a_ratio_of_1(self):
        near = {"share_of_floor": 0.88}
        self.assertEqual(goals.misses(goals.Goal(1.4), goals.Standing((1.0, 1.0, 1.0), **near)), [])
        self.assertEqual(goals.misses(goals.Goal(1.4), goals.Standing((0.9, 0.9, 0.99), **near)), ["ratio"])
        self.assertEqual(goals.misses(goals.Goal(1.4), goals.Standing((1.1, 1.1, 1.1), share_of_floor=0.87)), ["ratio"])
        self.assertEqual(goals.misses(goals.Goal(2.5, floor_counts=False), goals.Standing((1.1, 1.1, 1.1), **near)), ["ratio"])

    def test_a_share_of_the_peak_is_asked_for_where_arithmetic_bounds(self):
        goal, ratios = goals.Goal(1.0, 0.85), (1.1, 1.1, 1.1)
        self.assertEqual(goals.misses(goal, goals.Standing(ratios, share_of_peak=0.84)), ["85% of peak"])
        self.assertEqual(goals.misses(goal, goals.Standing(ratios, share_of_peak=0.85)), [])
        self.assertEqual(goals.misses(goal, goals.Standing(ratios, share_of_peak=0.1, bound_by_memory=True)), [])

    def test_our_own_forms_are_held_together(self):
        for name, ratios, met in (("heed_f32", (0.8, 0.9, 0.92), True), ("heed_f32", (0.8, 0.85, 0.9), False),
                                  ("heed_default_layout", (0.9, 0.94, 0.96), True),
                                  ("heed_default_layout", (0.9, 0.92, 0.94), False),
                                  ("heed_default_layout", (1.06, 1.1, 1.2), False),
                                  ("heed_native", (0.8, 0.84, 0.87), True), ("heed_native", (0.8, 0.84, 0.86), False)):
            found = goals.misses(goals.Goal(1.0), goals.Standing((2, 2, 2), own={name: ratios}))
            self.assertEqual(found, [] if met else [name])


class Verdicts(unittest.TestCase):
    linear = plan.Measurement("linear", "linear_9x9x9", "f32", shape=(9, 9, 9))
    probs = plan.Measurement("probs", "probs_64", "f32", shape=64)

    def test_the_best_peer_counts(self):
        self.assertEqual(misses(self.probs, {"torch_softmax": [2, 2, 2], "ort": [1.4, 1.4, 1.4]}, ours_ms=2.0), ["ratio"])
        self.assertEqual(misses(self.probs, {"torch_softmax": [1.6, 1.6, 1.6], "heed_f32": [1, 1, 1]}, ours_ms=2.0), [])

    def test_floor_and_peak_come_from_the_ceilings_of_the_run(self):
        shares = report.of_work(self.probs, (1e8, 5e6, 1e6), 2.0, CEILINGS)
        self.assertAlmostEqual(shares["gflops"], 50)
        self.assertAlmostEqual(shares["share_of_ceiling"], 0.25)
        self.assertAlmostEqual(shares["share_of_floor"], 0.5)
        self.assertFalse(shares["bound_by_memory"])
        self.assertTrue(report.of_work(self.probs, (1e8, 0, 2e7), 1.0, CEILINGS)["bound_by_memory"])
        self.assertEqual(misses(self.probs, {"torch_softmax": [1, 1, 1]}, ours_ms=1.1), [])  # 91 % of the floor
        self.assertEqual(misses(self.linear, {"torch_linear": [1, 1, 1]}, ours_ms=1.25), ["85% of peak"])

    def test_a_peer_that_is_missing_or_fails_is_a_miss(self):
        ratios = {"torch_softmax": [2, 2, 2]}
        self.assertEqual(misses(self.probs, ratios, failures={"ort": "killed"}), ["ort failed"])
        self.assertEqual(misses(self.probs, ratios, reasons={"ort": "has no such operation"}), [])
        self.assertEqual(misses(self.probs, {}, reasons={"torch_softmax": "no"}), ["torch_softmax failed", "no peer"])

    def test_a_verdict_says_how_many_rounds_were_disturbed(self):
        found = report.verdict(outcome(self.probs, {"torch_softmax": [2, 2, 2]}), {"ceilings": CEILINGS, "results": []})
        self.assertEqual(found, "  goal 1.5 met (1 of 3 rounds disturbed)")

    def test_our_failure_is_a_miss_without_a_goal_too(self):
        heed_report = {"ceilings": CEILINGS, "results": []}
        failed = outcome(plan.Measurement("attention", "base_1k", "f32"), {}, ours_ms=None)
        self.assertTrue(report.unmet(failed, heed_report))
        self.assertEqual(misses(self.probs, {}, ours_ms=None), ["failed"])


    def test_entries_say_what_was_missed(self):
        found = report.entries([outcome(self.probs, {"torch_softmax": [1.0, 2.0, 3.0]}, ours_ms=2.0, reasons={"ort": "no"})],
                               {"ceilings": CEILINGS, "results": []})
        ratios = {"ratio": 2.0, "ratio_p25": 1.0, "ratio_p75": 3.0}
        self.assertLessEqual({"peer": "torch_softmax", "goal": 1.5, "missed": [], **ratios}.items(), found[0].items())
        self.assertLessEqual({"peer": "ort", "ratio": None, "reason": "no"}.items(), found[1].items())


class Plan(unittest.TestCase):
    def test_every_line_is_measured_in_every_type(self):
        names = [(m.case, m.dtype) for m in plan.of_other_kinds()]
        self.assertEqual(len(names), len(set(names)))
        for case in ("linear_10000x384x1536", "linear_1000x512x16", "probs_1024_causal", "layer_mha_24x100_weights"):
            self.assertLessEqual({(case, dtype) for dtype in plan.DTYPES}, set(names))
        self.assertIn(("encoder_minilm_sentences", "f32"), names)

    def test_cases_by_suite_and_instruction_set(self):
        cases = [{"case": "p2k_gqa", "suite": "main", "kind": "prefill"}, {"case": "d4k_gqa", "suite": "main", "kind": "decode"}]
        found = [m.title() for m in plan.selected(plan.of_cases(cases), ["p*", "d4k_gqa"], ["f32"])]
        self.assertEqual(found, ["p2k_gqa f32", "p2k_gqa f32 avx2", "d4k_gqa warm f32", "d4k_gqa cold f32"])

    def test_own_references(self):
        of_layout = plan.references(plan.Measurement("attention", "p1k_d64_far", "f16"))
        self.assertEqual([(name, m.case, m.dtype) for name, m in of_layout.items()],
                         [("heed_default_layout", "p1k_d64_full", "f16"), ("heed_f32", "p1k_d64_far", "f32")])
        of_mask = plan.references(plan.Measurement("attention", "causal_2k_mask", "f32"))
        self.assertEqual([(name, m.case) for name, m in of_mask.items()], [("heed_native", "causal_2k")])
        self.assertEqual(plan.references(plan.Measurement("attention", "p2k_gqa", "f32")), {})
        self.assertLessEqual(set(of_layout), set(goals.REFERENCES))


class Shapes(unittest.TestCase):
    text = "batch=1,q_len=512,kv_len=512,heads=8,kv_heads=2,head_dim=64"

    def test_a_text(self):
        shape, dtypes = shapes.parsed(self.text + ",causal=1,dtype=bf16")
        self.assertEqual(dtypes, ("bf16",))
        self.assertEqual(shape, {"batch": 1, "q_len": 512, "kv_len": 512, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64,
                                 "causal": True, "case": "1x512x512_h8/2_d64_causal"})
        self.assertEqual(shapes.parsed(self.text)[1], plan.DTYPES)

    def test_refusals(self):
        for more, said in (("colour=1", "no field 'colour'"), ("causal=x", "must be a number"), ("mask=odd", "must be one of"),
                           ("dtype=i8", "must be one of"), ("kv_heads=3", "must divide"), ("mask=bias_full,causal=1", "no mask")):
            with self.assertRaisesRegex(shapes.Unknown, said):
                shapes.parsed(f"{self.text},{more}")
        with self.assertRaisesRegex(shapes.Unknown, "needs batch"):
            shapes.parsed("q_len=1")

    def test_the_line_whose_goal_counts(self):
        for more, case in (("", "p1k_d64_full"), ("batch=2", "bert_8x512"), ("kv_len=4096", "c256_4k_gqa"),
                           ("head_dim=72", "d72"), ("head_dim_v=111", "d72"), ("softcap=30", "add_11qk"), ("alibi=1", "add_11qk"),
                           ("mask=mask_shared", "add_11qk"), ("head_dim=128", "p512_mha"), ("q_len=1", "")):
            self.assertEqual(shapes.like(shapes.parsed(f"{self.text},{more}" if more else self.text)[0]), case)

    def test_a_seed_draws_the_same_shapes(self):
        drawn = shapes.random_shapes(20, 5)
        self.assertEqual(drawn, shapes.random_shapes(20, 5))
        self.assertEqual(drawn[:3], shapes.random_shapes(3, 5))
        self.assertNotEqual(drawn, shapes.random_shapes(20, 6))
        self.assertEqual(len({shape["case"] for shape in drawn}), 20)
        for shape in drawn:
            self.assertIsNotNone(goals.line_of(goals.LINES, shapes.like(shape)))
            self.assertEqual(shape["num_heads"] % shape["num_kv_heads"], 0)


if __name__ == "__main__":
    unittest.main()
