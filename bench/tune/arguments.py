"""Searches the speed parameters of one kernel of the table, on one case.

    run.py BUILD --case p2k_gqa [--kernel NAME] [--trials 200] [--minutes N] [--resume] [--random] [--held-out CASE]

Each trial generates the kernel, checks it against the default schedule and times it in turns with the schedule's own choice
and the best so far. Trials are kept in OUT/study.db: --resume continues them, also together with other processes. What beats the
schedule's own choice goes into the table of the kernel's ISA, which the next build reads; OUT/report.html says all."""
import argparse
import difflib
import pathlib
import re
import sys

CASES = pathlib.Path(__file__).resolve().parents[1] / "cases.cpp"
GATE_L2, GATE_SPEED = "256K", 0.97


def names_in_source():
    """Of the cases that heed_bench has once it is built, with N for each number that the source counts up."""
    text = CASES.read_text(encoding="utf-8").partition("&all_cases()")[0]
    text = re.sub(r'" \+ std::to_string\([^()]*\) \+ "', "N", text)
    text = re.sub(r'" \+ std::to_string\([^()]*\)', 'N"', text)
    return re.findall(r'(?<!in_suite\()"([a-z][a-z0-9_N]*)"', text)


def check_case(names, option, name):
    """A sentence and the end for a case that is none of these."""
    if not any(re.fullmatch(known.replace("N", "[0-9]+"), name) for known in names):
        near = ", ".join(difflib.get_close_matches(name, names, 3, 0))
        raise SystemExit(f"{option} is {name}; it must be a case of `heed_bench --list`; near names: {near}")


def parsed(arguments):
    """The options. Ends with a sentence for a case that heed_bench cannot have: before it is built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--case", required=True, help="of heed_bench --list")
    parser.add_argument("--kernel", help="a kernel of the table, on this machine's instructions; unless given, the one that the "
                                         "plan chooses for the case, which is named")
    parser.add_argument("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of the case, to choose the kernel by")
    parser.add_argument("--trials", type=int, default=200, help="of each search, with those of earlier runs and other processes")
    parser.add_argument("--minutes", type=float, help="of the whole run, finals included: the search ends early enough")
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
    parser.add_argument("--out", type=pathlib.Path, help="BUILD/tune/KERNEL unless given")
    options = parser.parse_args(arguments)
    check_case(names_in_source(), "--case", options.case)
    if options.held_out:
        check_case(names_in_source(), "--held-out", options.held_out)
    if options.gate:
        options.random, options.l2 = True, options.l2 or GATE_L2
    return options


if __name__ == "__main__":
    parsed(sys.argv[1:])
