"""Searches the speed parameters of one row of the kernel table, on one case.

    run.py BUILD --case p2k_gqa --row NAME [--trials 200] [--minutes N] [--resume] [--random] [--held-out CASE]

Each trial generates the row, checks it against the default schedule and times it in turns with the schedule's own choice
and the best so far. Trials are kept in OUT/study.db: --resume continues them, also beside other processes. What beats the
schedule's own choice goes into the table of the row's ISA, which the next build reads; OUT/report.html says all."""
import argparse
import datetime
import json
import pathlib
import sys
import time
import warnings

import optuna
import tqdm

import space
import tables
from finals import PLAIN, finals, speed
from report import page
from study import SAMPLERS, Bench, Search, take_trial
from trial_builder import TrialBuilder

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST_GAIN = 1.01  # by the fastest rounds and by the median of the pairs; below that a difference is noise
GATE_L2, GATE_SPEED = "256K", 0.97


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--case", required=True, help="of heed_bench --list")
    parser.add_argument("--row", required=True, help="a row of the table, on this machine's instructions")
    parser.add_argument("--trials", type=int, default=200, help="of each search, with those of earlier runs and other processes")
    parser.add_argument("--minutes", type=float, help="stop after these, whatever the trials")
    parser.add_argument("--resume", action="store_true", help="continue the study in OUT, or join a process that runs it")
    parser.add_argument("--random", action="store_true", help="random search too, trial by trial in turns with the search")
    parser.add_argument("--held-out", help="a case that the search does not see; unless given, the first like its own")
    parser.add_argument("--l2", help="start where the schedule would with an L2 of this size: 256K")
    parser.add_argument("--gate", action="store_true",
                        help=f"--random --l2 {GATE_L2}; fails below {GATE_SPEED} of the speed of the schedule's own choice, or "
                             "when random search finds as good a point; writes no table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of a trial; the finals have twice as many")
    parser.add_argument("--seconds", type=float, default=0.2, help="per round and candidate, at least two calls")
    parser.add_argument("--table", type=pathlib.Path, help="schedules/tuned/ISA.json unless given")
    parser.add_argument("--out", type=pathlib.Path, help="BUILD/tune/ROW unless given")
    options = parser.parse_args(arguments)
    if options.gate:
        options.random, options.l2 = True, options.l2 or GATE_L2
    options.out = options.out or options.build / "tune" / options.row
    return options


def search_all(searches, bench, options):
    """Until each search has its trials, or the time is over: their trials alternate, for the machine changes with time."""
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    counts = [min(len(search.ended()), options.trials) for search in searches]
    with tqdm.tqdm(total=options.trials * len(searches), initial=sum(counts), unit="trial") as bar:
        while time.monotonic() < deadline and min(counts) < options.trials:
            for search in searches:
                if len(search.ended()) < options.trials:
                    take_trial(search, bench)
            counts = [min(len(search.ended()), options.trials) for search in searches]
            bar.update(sum(counts) - bar.n)
            bar.set_postfix({search.kind: f"{search.best_value():.3f}" for search in searches})


def another_case(cases, name):
    """The first of the same kind and head dims, without a mask; None where there is none."""
    own = next(case for case in cases if case["case"] == name)
    alike = [case["case"] for case in cases if case["case"] != name and
             all(case[key] == own[key] for key in ("kind", "head_dim", "head_dim_v", "mask"))]
    return alike[0] if alike else None


def machine():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def table_of(options, builder):
    return options.table or ROOT / "schedules/tuned" / f"{builder.fields['isa']}.json"


def gate(found):
    """Sentences of what does not hold."""
    race = found["case"]
    wrong = []
    if "tpe" not in race or speed(race, "tpe") < GATE_SPEED:
        wrong.append(f"the search did not reach {GATE_SPEED} of the speed of the schedule's own choice")
    if "tpe" in race and "random" in race and race["tpe"]["ms"] >= race["random"]["ms"]:
        wrong.append("random search found as good a point")
    return wrong


def store(options, builder, found, trials):
    """Into the table, where that is a gain. What was done, in words."""
    race = found["case"]
    gain = min(speed(race, "tpe"), race["tpe"]["paired"]) if "tpe" in race else 0
    if options.gate or gain < LEAST_GAIN:
        return "no table was written: " + ("a gate" if options.gate else "the schedule's own choice stands")
    path = table_of(options, builder)
    held_out = {"held_out": round(speed(found["held_out"], "tpe"), 3)} if found["held_out"] else {}
    tables.store(path, options.row, {"parameters": found["values"]["tpe"], "machine": machine(),
                                     "date": datetime.date.today().isoformat(), "case": options.case, "trials": trials,
                                     "gain": round(gain, 3), **held_out})
    return f"written to {path.name}: the next build has it"


def main(arguments):
    options = parsed(arguments)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    builder = TrialBuilder(options.build, options.out, options.row, options.threads)
    parameters = builder.parameters(options.l2 and space.bytes_of(options.l2))
    storage = optuna.storages.RDBStorage(f"sqlite:///{options.out}/study.db", engine_kwargs={"connect_args": {"timeout": 60}})
    kinds = SAMPLERS if options.random else SAMPLERS[:1]
    facts = [options.row, options.case, f"l2={options.l2}" if options.l2 else "own"]
    starts = [space.start(parameters)]
    if not options.l2 and options.row in (tuned := tables.load(table_of(options, builder))):
        starts.append({**starts[0], **tuned[options.row]["parameters"]})
    searches = [Search(storage, kind, facts, parameters, starts, options.resume) for kind in kinds]
    search_all(searches, Bench(builder, options.case, options.rounds, options.seconds), options)

    with builder.program([builder.candidate()]) as server:
        held_out = options.held_out or another_case(server.ask(do="hello")["cases"], options.case)
    found = finals(builder, searches, options.case, held_out, 2 * options.rounds, options.seconds)
    trials = len(searches[0].ended())
    outcome = store(options, builder, found, trials)
    wrong = gate(found) if options.gate else []
    summary = {"row": options.row, "case": options.case, "held out": held_out, "machine": machine(),
               "date": datetime.date.today().isoformat(), "threads": options.threads, "trials of each search": trials,
               "start": f"machine facts with an L2 of {options.l2}" if options.l2 else "the schedule's own choice",
               "outcome": "; ".join([outcome, *wrong])}
    (options.out / "report.html").write_text(page(summary, searches, space.start(builder.parameters()), found))
    (options.out / "found.json").write_text(json.dumps({**summary, **found}, indent=2) + "\n")
    for name, entry in found["case"].items():
        print(f"{name:14} {entry['ms']:10.4f} ms  {speed(found['case'], name):6.3f} of {PLAIN}  "
              f"{100 * entry['share']:5.1f} % of the roofline")
    print(f"{summary['outcome']}\n{options.out / 'report.html'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
