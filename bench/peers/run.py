"""Heed beside PyTorch, ONNX Runtime and OpenVINO, on the same cases and element types, in turns: ./dev bench --peers [OPTIONS].

Every round times each library once, for --seconds; the fastest call of all rounds counts. All have the same number of
threads on the same cores. A result is checked against fp64 before it is timed. Exit status 1 when a case of ours failed.
"""
import argparse
import os
import sys

import plan
from heed import Heed
from timing import ForeignCpu


def parse():
    parser = argparse.ArgumentParser(prog="./dev bench --peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heed-bench", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--heed-linear", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--cases", default="", help="names with commas between, patterns as in file names: d4k_*,linear_*")
    parser.add_argument("--dtype", default=",".join(plan.DTYPES), help="f32,bf16,f16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a library in a round")
    parser.add_argument("--wait", type=float, default=0, metavar="S",
                        help="before a round, wait up to S seconds for other processes to leave the machine alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="the list of results: one for each case, type and peer")
    parser.add_argument("--results", metavar="FILE", help="the same with the machine, its ceilings and the peers' versions")
    options = parser.parse_args()
    options.dtype = options.dtype.split(",")
    if unknown := set(options.dtype) - set(plan.DTYPES):
        parser.error(f"no element type {', '.join(sorted(unknown))}")
    return options


def main():
    options = parse()
    heed = Heed(options.heed_bench, options.threads)
    hello = heed.ask(do="hello")
    measurements = plan.measurements(hello["cases"], list(filter(None, options.cases.split(","))), options.dtype)
    if not measurements:
        sys.exit("no case matches")
    os.sched_setaffinity(0, hello["cpus"])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, for checks
    from comparison import Comparison  # its libraries read the environment
    import report

    comparison, foreign, outcomes = Comparison(heed, hello, options), ForeignCpu(heed.pid), []

    def save():
        """Ceilings are measured again: bandwidths swing from minute to minute. The larger ones count."""
        heed.ask(do="ceilings")
        heed_report = heed.ask(do="report")
        machine = {**hello["machine"], "threads": options.threads, "rounds": options.rounds, "seconds": options.seconds,
                   "foreign_cpu": foreign.share()}
        found = report.entries(outcomes, heed_report)
        if options.json:
            report.write_list(found, options.json)
        if options.results:
            report.write_results(found, heed_report, machine, options.results)
        return machine, heed_report

    for at, measurement in enumerate(measurements):
        if at % 20 == 0:
            save()
        print(f"{at + 1}/{len(measurements)} {measurement.title()}", file=sys.stderr, flush=True)
        outcomes.append(comparison.run(measurement))
    machine, heed_report = save()
    heed.close()
    print(f"{machine['cpu']}, {options.threads} threads, {machine['date']}; other processes used "
          f"{100 * machine['foreign_cpu']:.0f} % of the machine")
    report.print_table(outcomes, heed_report)
    return 1 if any(outcome.ours_ms is None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
