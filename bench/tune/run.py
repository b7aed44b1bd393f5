"""The run of `./dev tune`; arguments.py says what it does."""
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
from arguments import GATE_SPEED, check_case, parsed
from finals import MOST_FINALISTS, PLAIN, finals, speed
from report import page
from server import Failed, Server
from study import SAMPLERS, Bench, Search, take_trial
from trial_builder import TrialBuilder

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST_GAIN = 1.01  # by the fastest rounds and by the median of the pairs; below that a difference is noise


def seconds_of_finals(num_searches, options):
    """About what finals() takes: each candidate in each round, on the case and on the one held out."""
    candidates = 1 + 2 + MOST_FINALISTS * num_searches
    return 2 * options.rounds * options.seconds * (candidates + 1 + num_searches)


def search_all(searches, bench, options, deadline):
    """Until each search has its trials, or there is time for no more than the finals: their trials alternate, for the machine
    changes with time."""
    longest = 0  # seconds of a trial
    last = deadline - seconds_of_finals(len(searches), options)
    counts = [min(len(search.ended()), options.trials) for search in searches]
    with tqdm.tqdm(total=options.trials * len(searches), initial=sum(counts), unit="trial") as bar:
        while min(counts) < options.trials:
            for search in searches:
                started = time.monotonic()
                # The finals build programs as two trials do.
                if len(search.ended()) < options.trials and (longest == 0 or started + 3 * longest < last):
                    take_trial(search, bench)
                    longest = max(longest, time.monotonic() - started)
            if time.monotonic() + 3 * longest >= last:
                break
            counts = [min(len(search.ended()), options.trials) for search in searches]
            bar.update(sum(counts) - bar.n)
            bar.set_postfix({search.kind: f"{search.best_value():.3f}" for search in searches})


def names_of(cases):
    return [case["case"] for case in cases]


def kernel_of_case(options):
    """The kernel that the plan chooses, of the whole table."""
    program = options.build / "bench/heed_bench"
    if not program.exists():
        raise SystemExit(f"--kernel is missing, and {program}, which knows the kernel of a case, is not built")
    with Server([program, "--serve", "--threads", options.threads]) as server:
        check_case(names_of(server.ask(do="hello")["cases"]), "--case", options.case)
        try:
            kernel = server.ask(do="time", case=options.case, dtype=options.dtype, seconds=0)["kernel"]
        except Failed as reason:
            raise SystemExit(f"--case is {options.case}, in {options.dtype}: {reason}") from reason
    print(f"{options.case} in {options.dtype} uses {kernel}", flush=True)
    return kernel


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
    if options.gate:
        return "no table was written: this is a gate"
    if "tpe" not in race:
        return "no table was written: no trial was timed to its end"
    fastest, median = speed(race, "tpe"), race["tpe"]["paired"]
    gain = min(fastest, median)
    if gain < LEAST_GAIN:
        return (f"no table was written: the search's best is {fastest:.3f} times as fast as the schedule's own choice by the fastest "
                f"rounds and {median:.3f} by the median round; both must be {LEAST_GAIN}")
    path = table_of(options, builder)
    held_out = {"held_out": round(speed(found["held_out"], "tpe"), 3)} if found["held_out"] else {}
    tables.store(path, options.kernel, {"parameters": found["values"]["tpe"], "machine": machine(),
                                     "date": datetime.date.today().isoformat(), "case": options.case, "trials": trials,
                                     "gain": round(gain, 3), **held_out})
    return f"written to {path.name}: the next build has it"


def main(arguments):
    started = time.monotonic()
    options = parsed(arguments)
    deadline = started + 60 * options.minutes if options.minutes else float("inf")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    options.kernel = options.kernel or kernel_of_case(options)
    options.out = options.out or options.build / "tune" / options.kernel
    builder = TrialBuilder(options.build, options.out, options.kernel, options.threads)
    with builder.program([builder.candidate()]) as server:
        cases = server.ask(do="hello")["cases"]
    check_case(names_of(cases), "--case", options.case)
    held_out = options.held_out or another_case(cases, options.case)
    if held_out:
        check_case(names_of(cases), "--held-out", held_out)
    parameters = builder.parameters(options.l2 and space.bytes_of(options.l2))
    storage = optuna.storages.RDBStorage(f"sqlite:///{options.out}/study.db", engine_kwargs={"connect_args": {"timeout": 60}})
    kinds = SAMPLERS if options.random else SAMPLERS[:1]
    facts = [options.kernel, options.case, f"l2={options.l2}" if options.l2 else "own"]
    starts = [space.start(parameters)]
    if not options.l2 and options.kernel in (tuned := tables.load(table_of(options, builder))):
        starts.append({**starts[0], **tuned[options.kernel]["parameters"]})
    searches = [Search(storage, kind, facts, parameters, starts, options.resume) for kind in kinds]
    search_all(searches, Bench(builder, options.case, options.rounds, options.seconds), options, deadline)
    found = finals(builder, searches, options.case, held_out, 2 * options.rounds, options.seconds)
    trials = len(searches[0].ended())
    outcome = store(options, builder, found, trials)
    wrong = gate(found) if options.gate else []
    summary = {"kernel": options.kernel, "case": options.case, "held out": held_out, "machine": machine(),
               "date": datetime.date.today().isoformat(), "threads": options.threads, "trials of each search": trials,
               "start": f"machine facts with an L2 of {options.l2}" if options.l2 else "the schedule's own choice",
               "outcome": "; ".join([outcome, *wrong])}
    (options.out / "report.html").write_text(page(summary, searches, space.start(builder.parameters()), found))
    (options.out / "found.json").write_text(json.dumps({**summary, **found}, indent=2) + "\n")
    for name, entry in found["case"].items():
        print(f"{name:14} {entry['ms']:10.4f} ms  {speed(found['case'], name):6.3f} of {PLAIN} "
              f"({entry['paired']:.3f} in the median round)  "
              f"{100 * entry['share']:5.1f} % of the roofline")
    print(f"{summary['outcome']}\n{options.out / 'report.html'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
