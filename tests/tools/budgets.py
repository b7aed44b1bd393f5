"""What kernels and programs may cost, against a list: budgets.py BUILD [--update]

Checks the build of ./dev test --ci against budgets.json: of each instruction set (of CUDA with the chips that have machine code) the
number of kernels in the default table, the bytes of their objects and the seconds that making them took; the bytes of the command heed;
the number of commands that build the demo. Exit status 1 when a number is exceeded, or not in the list: SLACK is how far bytes, of other
compilers, and seconds may exceed theirs. A machine on which the whole table takes longer than its budget is given that much more for
each instruction set. --update writes what it finds; who raises a number writes the reason into "reasons" of budgets.json, under the
same name."""
import argparse
import json
import pathlib
import re
import subprocess
import sys

LIST = pathlib.Path(__file__).with_name("budgets.json")
ISA_FIELD = {"HEED_KERNEL": 8, "HEED_OP": 4}  # of a kernel's line: the macro, and which argument is the instruction set
SLACK = {"seconds": 1.5, "bytes": 1.03}


def seconds_of_edges(build):
    """The seconds of each output of the last build, from ninja's log."""
    seconds = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        seconds[pathlib.Path(output).name] = (int(end) - int(begin)) / 1000
    return seconds


def archs_of(build):
    cache = (build / "CMakeCache.txt").read_text()
    return re.search(r"^HEED_CUDA_ARCHS:\w+=(.*)", cache, re.M)[1].replace(";", " ")


def isa_of(line):
    """The instruction set of a kernel's line in the table, HEED_KERNEL(...) or HEED_OP(...)."""
    macro, arguments = line.split("(", 1)
    return arguments.split(", ")[ISA_FIELD[macro]]


def measure(build):
    seconds, found, folder = seconds_of_edges(build), {}, build / "heed_kernels.dir"
    for name in re.findall(r'"(\w+)\.inc"', (folder / "kernel_table.inc").read_text()):
        isa = isa_of((folder / f"{name}.inc").read_text())
        if isa.startswith("sm"):
            isa += f" ({archs_of(build)})"
        of_isa = found.setdefault(isa, {"kernels": 0, "bytes": 0, "seconds": 0})
        of_isa["kernels"] += 1
        of_isa["bytes"] += (folder / f"{name}.o").stat().st_size
        of_isa["seconds"] = round(of_isa["seconds"] + seconds.get(f"{name}.o", 0), 1)
    demo = subprocess.run(["ninja", "-C", build, "-t", "commands", "heed_minilm"], check=True, capture_output=True, text=True)
    found["command heed"] = {"bytes": (build / "runtime/cli/heed").stat().st_size}
    found["demo"] = {"commands": len(demo.stdout.splitlines())}
    return found


def seconds_of(costs):
    """Of the whole table."""
    return sum(of_isa.get("seconds", 0) for what, of_isa in costs.items() if what != "reasons")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.build)
    budgets = json.loads(LIST.read_text()) if LIST.exists() else {"reasons": {}}
    if arguments.update:
        LIST.write_text(json.dumps({**budgets, **found}, indent=1) + "\n")
        budgets = {**budgets, **found}
    wrong, slowness = [], max(1, seconds_of(found) / max(1, seconds_of(budgets)))
    for what, costs in found.items():
        for name, value in costs.items():
            budget = budgets.get(what, {}).get(name)
            if budget is not None and name == "seconds":
                budget = round(budget * slowness, 1)
            if budget is None or value > budget * SLACK.get(name, 1):
                wrong.append(f"{what}: {value} {name}, the budget is {budget}")
            print(f"{what}: {value} {name} of {budget}")
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
