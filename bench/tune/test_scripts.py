"""What the scripts of `./dev tune` make of parameters, races, studies and tables. No kernel is made."""
import contextlib
import html.parser
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import types
import unittest

import optuna

import arguments
import race
import report
import run
import space
import study
import tables
from server import Failed, Server

PARAMETERS = {"lanes": {"default": 16, "values": [4, 8, 16]},
              "row_block": {"default": 48, "multiple_of": "lanes", "unit": 16, "most_factor": 6},
              "masked_block": {"default": 48, "values": [16, 32, 48]},
              "kv_block": {"default": 144, "multiple_of": "masked_block", "unit": 48, "most_factor": 8}}
LINE_SERVER = ["python3", "-c", "import json, sys\nfor line in sys.stdin:\n  r = json.loads(line)\n"
               "  if r['do'] == 'die': sys.exit(3)\n"
               "  print(json.dumps({'error': 'no'} if r['do'] == 'refuse' else {'ms': 1}), flush=True)"]


class Space(unittest.TestCase):
    def test_what_is_sampled_gives_the_values_again(self):
        start = space.start(PARAMETERS)
        trial = optuna.trial.FixedTrial(space.sampled(PARAMETERS, start))
        self.assertEqual(space.suggest(trial, PARAMETERS), start)

    def test_multiples_follow_the_value_of_their_unit(self):
        trial = optuna.trial.FixedTrial({"lanes": 8, "row_block/lanes": 5, "masked_block": 32, "kv_block/masked_block": 2})
        self.assertEqual(space.suggest(trial, PARAMETERS), {"lanes": 8, "row_block": 40, "masked_block": 32, "kv_block": 64})

    def test_a_unit_that_is_no_parameter(self):
        parameters = {"row_block": PARAMETERS["row_block"]}
        self.assertEqual(space.suggest(optuna.trial.FixedTrial({"row_block/lanes": 2}), parameters), {"row_block": 32})

    def test_sizes(self):
        self.assertEqual([space.bytes_of(text) for text in ("256K", "1M", "4096")], [262144, 1048576, 4096])


class Requests(unittest.TestCase):
    def test_answers_refusals_and_death(self):
        with Server(LINE_SERVER) as server:
            self.assertEqual(server.ask(do="time")["ms"], 1)
            with self.assertRaisesRegex(Failed, "refuse: no"):
                server.ask(do="refuse")
            with self.assertRaisesRegex(Failed, "die: exit status 3"):
                server.ask(do="die")


class Rounds(unittest.TestCase):
    def test_only_what_is_clearly_slower_is_hopeless(self):
        self.assertTrue(race.hopeless(1, 1.3))
        self.assertFalse(race.hopeless(1, 1.1))
        self.assertTrue(race.hopeless(2, 1.1))
        self.assertFalse(race.hopeless(9, 5))


class Times(unittest.TestCase):
    def test_a_lucky_round_counts_for_little(self):
        class Clock:
            """Answers with these times, one after another."""
            def __init__(self, times):
                self.times = iter(times)

            def ask(self, **_request):
                return {"ms": next(self.times)}

        one, other = types.SimpleNamespace(name="one"), types.SimpleNamespace(name="other")
        timed = race.Race(Clock([9, 18, 10, 10, 10, 10]), "case", {"dtype": "f32", "phase": "prefill"}, 0.1)
        for _ in range(3):
            timed.round([one, other])
        self.assertEqual(timed.paired_speed(one, other), 1)
        self.assertEqual(timed.ratio(one, other), 1)  # not 0.9, as the fastest rounds say
        self.assertAlmostEqual(timed.ratio(other, one), 10 / 9)


class FakeBench:
    """Instead of a kernel: the further from 96 keys the slower; some cannot be made."""

    def __init__(self):
        self.tried = []

    def attempt(self, trial, values, _best):
        self.tried.append(values)
        if values["row_block"] > 32:
            raise Failed("generation: too many rows")
        value = 1 + abs(values["kv_block"] - 96) / 96
        trial.report(value, 1)
        if value > 1.8:
            raise optuna.TrialPruned
        return value


class FlatBench:
    def attempt(self, _trial, _values, _best):
        return 1.0


class Studies(unittest.TestCase):
    def setUp(self):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.storage = optuna.storages.InMemoryStorage()

    def search(self, kind="tpe", resume=False):
        return study.Search(self.storage, kind, ["kernel", "case"], PARAMETERS, [space.start(PARAMETERS)], resume)

    def test_a_study_goes_on(self):
        search, bench = self.search(), FakeBench()
        for _ in range(15):
            study.take_trial(search, bench)
        self.assertEqual(bench.tried[0], space.start(PARAMETERS))
        with self.assertRaisesRegex(SystemExit, "--resume"):
            self.search()
        again = self.search(resume=True)
        self.assertEqual(len(again.ended()), 15)
        self.assertEqual(again.best(3), search.best(3))

    def test_no_point_is_tried_twice_and_failures_keep_their_reason(self):
        search, bench = self.search("random"), FakeBench()
        for _ in range(25):
            study.take_trial(search, bench)
        self.assertEqual(len(bench.tried), len({json.dumps(values) for values in bench.tried}))
        reasons = {trial.user_attrs["failure"] for trial in search.ended() if "failure" in trial.user_attrs}
        self.assertEqual(reasons, {"generation: too many rows"})
        self.assertTrue(all(trial.user_attrs["values"]["row_block"] <= 32 for trial in search.timed()))

    def test_time_is_left_for_the_finals(self):
        options = types.SimpleNamespace(trials=50, rounds=2, seconds=0.5)
        search = self.search()
        with contextlib.redirect_stderr(io.StringIO()):
            run.search_all([search], FlatBench(), options, time.monotonic() + run.seconds_of_finals(1, options))
            self.assertEqual(len(search.ended()), 1)
            run.search_all([search], FlatBench(), options, float("inf"))
        self.assertEqual(len(search.ended()), 50)
        self.assertGreaterEqual(run.seconds_of_finals(1, options), 2 * 2 * 0.5 * 8)

    def test_the_page_holds_together(self):
        searches = [self.search(), self.search("random")]
        for _ in range(12):
            for search in searches:
                study.take_trial(search, FakeBench())
        ran = {"default": {"ms": 2.0, "share": 0.5}, "tpe": {"ms": 1.5, "share": 0.6}, "random": {"ms": 1.6, "share": 0.55}}
        values = {search.kind: search.best()[0] for search in searches}
        page = report.page({"kernel": "a_row"}, searches, space.start(PARAMETERS),
                           {"case": ran, "held_out": ran, "values": values, "reasons": {"Adams2019": "an <error>"}})
        self.assertIn("an &lt;error&gt;", page)
        self.assertIn("1.333", page)
        self.assertIn("too many rows", page)
        self.assertEqual(page.count('<img src="data:image/svg+xml;base64,'), 2)
        self.assertFalse("http" in page)  # without all of it in the message
        html.parser.HTMLParser().feed(page)


    def test_plots_of_nothing_and_of_one_point(self):
        search = self.search()
        self.assertEqual(report.history([search]), "<p>No trial was timed to its end.</p>")
        study.take_trial(search, FlatBench())
        for plot in report.history([search]), report.importances(search):
            self.assertEqual(plot[:32], '<img src="data:image/svg+xml;bas')


class Outcomes(unittest.TestCase):
    def test_gate(self):
        entry = {"share": 0.5}
        held = {"case": {"default": {"ms": 1.0, **entry}, "tpe": {"ms": 1.02, **entry}, "random": {"ms": 1.1, **entry}}}
        self.assertEqual(run.gate(held), [])
        held["case"]["tpe"]["ms"] = 1.05
        self.assertEqual(len(run.gate(held)), 1)
        held["case"]["random"]["ms"] = 1.04
        self.assertEqual(len(run.gate(held)), 2)

    def test_a_gain_by_one_measure_only_is_none(self):
        options = types.SimpleNamespace(gate=False)
        race = {"default": {"ms": 1.22}, "tpe": {"ms": 1.0, "paired": 0.998}}
        said = run.store(options, None, {"case": race}, 3)
        self.assertIn("1.220 times as fast as the schedule's own choice by the fastest rounds and 0.998 by the median round", said)
        del race["tpe"]
        self.assertEqual(run.store(options, None, {"case": race}, 3), "no table was written: no trial was timed to its end")

    def test_an_unknown_case_is_a_sentence_before_anything_is_built(self):
        program = [sys.executable, "-B", arguments.__file__, "no_build"]
        for options, sentence in (
                (["--case", "p2k_gpa"], "--case is p2k_gpa; it must be a case of `heed_bench --list`; near names: p2k_gqa.*"),
                (["--case", "seed1", "--held-out", "small"], "--held-out is small; it must be .*"), (["--case", "len_"], "--case is len_; .*"),
                (["--case", "main"], "--case is main; .*"), (["--case", "small_q4_kv64", "--held-out", "kv_32k"], "")):
            with self.subTest(options):
                done = subprocess.run([*program, *options], capture_output=True, text=True)
                self.assertRegex(done.stderr, f"^({sentence}\n)?$")
                self.assertEqual(done.returncode != 0, bool(sentence))

    def test_dev_asks_before_it_builds(self):
        text = run.ROOT.joinpath("dev").read_text()
        steps = re.search(r"^tune\)\n(.*?);;", text, re.S | re.M)[1]
        self.assertLess(steps.index("bench/tune/arguments.py"), steps.index("configure_and_build"))

    def test_another_case_has_the_same_shape_of_rows(self):
        case = {"kind": "prefill", "head_dim": 128, "head_dim_v": 128, "mask": "none"}
        cases = [{**case, "case": "masked", "mask": "bias_full"}, {**case, "case": "mine"}, {**case, "case": "small", "head_dim": 64},
                 {**case, "case": "other"}]
        self.assertEqual(run.another_case(cases, "mine"), "other")
        self.assertIsNone(run.another_case(cases, "small"))

    def test_a_table_keeps_its_other_kernels(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tuned", "avx2.json")
            tables.store(path, "b", {"parameters": {"kv_block": 96}, "gain": 1.1})
            tables.store(path, "a", {"parameters": {"kv_block": 48}})
            tables.store(path, "b", {"parameters": {"kv_block": 144}})
            self.assertEqual(tables.load(path), {"a": {"parameters": {"kv_block": 48}}, "b": {"parameters": {"kv_block": 144}}})


if __name__ == "__main__":
    unittest.main()
