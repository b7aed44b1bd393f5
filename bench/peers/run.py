"""Heed compared with PyTorch, ONNX Runtime and OpenVINO, on the same cases and element types, in turns: ./dev bench --peers [OPTIONS].

Every round times each library once, for --seconds, in alternating order; a ratio is the median of the rounds' ratios, printed
with the 25th and 75th percentile. All have the same number of threads on the same cores. A result is checked before it is
timed. Exit status 1 when a measurement of ours failed or misses its goal (goals.py): the 75th percentile of its ratio to the
best peer is below the goal and, in f32 or without AMX, its time is above floor / 88 % or that percentile is below 1; or a peer
failed. Floor: FLOPs and exponentials at the ceilings that the same run measured.
"""
import argparse
import os
import pathlib
import secrets
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which reads it when it is loaded; only checks use it

import plan
import shapes
from data import Cannot
from ours import Heed
from timing import ForeignCpu


def parse():
    parser = argparse.ArgumentParser(prog="./dev bench --peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--cases", default="", help="names with commas between, patterns as in file names: d4k_*,linear_*")
    parser.add_argument("--shape", action="append", default=[], metavar="FIELD=VALUE,...",
                        help="another attention shape, instead of --cases: batch=1,q_len=512,kv_len=512,heads=8,kv_heads=2,"
                             "head_dim=64,causal=1,dtype=bf16; may be given several times")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N random shapes from the ranges of the goals, likewise")
    parser.add_argument("--seed", type=int, help="of --random; printed")
    parser.add_argument("--dtype", default=",".join(plan.DTYPES), help="f32,bf16,f16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a library in a round")
    parser.add_argument("--wait", type=float, default=0, metavar="S",
                        help="before a round, wait up to S seconds for other processes to leave the machine alone; of up to twice "
                             "as many rounds the quiet ones count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="the list of results: one for each case, type and peer")
    parser.add_argument("--results", metavar="FILE", help="the same with the machine, its ceilings and the peers' versions")
    options = parser.parse_args()
    options.dtype = options.dtype.split(",")
    if unknown := set(options.dtype) - set(plan.DTYPES):
        parser.error(f"no element type {', '.join(sorted(unknown))}")
    if options.cases and (options.shape or options.random):
        parser.error("--cases has no meaning with --shape or --random")
    try:
        options.shape = [shapes.parsed(text) for text in options.shape]
    except shapes.Unknown as error:
        parser.error(f"--shape: {error}")
    if options.random:
        options.seed = secrets.randbelow(2**32) if options.seed is None else options.seed
        print(f"--random {options.random} --seed {options.seed}", flush=True)
        options.shape += [(shape, plan.DTYPES) for shape in shapes.random_shapes(options.random, options.seed)]
    return options


def measurements(options, context, cases):
    if options.shape:
        try:
            found = plan.of_shapes([(context.add_case(shape), shapes.like(shape), dtypes) for shape, dtypes in options.shape])
        except Cannot as error:
            sys.exit(f"--shape: {error}")
    else:
        found = plan.of_cases(cases) + plan.of_other_kinds()
    return plan.selected(dict.fromkeys(found), list(filter(None, options.cases.split(","))), options.dtype)


def main():
    options = parse()
    heed = Heed(options.build / "bench/heed_bench", options.threads)
    hello = heed.ask(do="hello")
    os.sched_setaffinity(0, hello["cpus"])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    from comparison import Comparison, Context  # its libraries read the environment
    import report

    context = Context(heed, hello, options.build, options.threads)
    found = measurements(options, context, hello["cases"])
    if not found:
        sys.exit("no case matches")
    comparison, foreign, outcomes = Comparison(context, options), ForeignCpu(), []

    def save():
        """Ceilings are measured again: bandwidths swing from minute to minute. The larger ones count."""
        heed.ask(do="ceilings")
        heed_report = heed.ask(do="report")
        machine = {**hello["machine"], "threads": options.threads, "rounds": options.rounds, "seconds": options.seconds,
                   "foreign_cpu": foreign.share()}
        entries = report.entries(outcomes, heed_report)
        if options.json:
            report.write_list(entries, options.json)
        if options.results:
            report.write_results(entries, heed_report, machine, options.results)
        return machine, heed_report

    for at, measurement in enumerate(found):
        if at % 20 == 0:
            save()
        print(f"{at + 1}/{len(found)} {measurement.title()}", file=sys.stderr, flush=True)
        outcomes.append(comparison.run(measurement))
    machine, heed_report = save()
    context.close()
    print(f"{machine['cpu']}, {options.threads} threads, {machine['date']}; other processes used "
          f"{100 * machine['foreign_cpu']:.0f} % of the machine")
    report.print_table(outcomes, heed_report)
    return 1 if any(report.unmet(outcome, heed_report) for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
