"""The names of the promises that tests make, against a list: none vanishes without a line of its own in a commit.

    promises.py REPORTS [--update]

REPORTS is the folder that ./dev test writes: ctest.junit, and TEST.xml of each program of GoogleTest. A promise is a test of
CTest or, of a program of GoogleTest, "TEST SUITE.NAME", without shards and without parameters. promises.txt lists those that
./dev test --ci runs everywhere; a line that ends with [avx512], [avx512bf16] or [amx] is asked for only where the machine has that
instruction set. Exit status 1 when one of the list did not run. One that ran and is not in the list is named: --update adds those,
and removes nothing."""
import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

LIST = pathlib.Path(__file__).with_name("promises.txt")


def plain(name):
    """A test of CTest without its shard and its parameters."""
    return re.sub(r"/.*", "", re.sub(r"\.\d+$", "", re.sub(r"(^|\.)\w+/(?=\w+\.)", r"\1", name)))


def ran(reports):
    names = set()
    for case in ElementTree.parse(reports / "ctest.junit").iter("testcase"):
        if case.get("status") == "run":
            names.add(plain(case.get("name")))
    for report in reports.glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            if case.get("status") == "run" and case.find("skipped") is None:
                suite, test = case.get("classname").split("/")[-1], case.get("name").split("/")[0]
                # The class of a suite with parameters is INSTANCE/SUITE, or INSTANCE/SUITE/N with types.
                if suite.isdigit():
                    suite = case.get("classname").split("/")[-2]
                names.add(f"{plain(report.stem)} {suite}.{test}")
    return names


def machine_has():
    """For each instruction set that a line may end with, whether this machine has it."""
    flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split()
    return {isa: flag in flags for isa, flag in (("avx512", "avx512f"), ("avx512bf16", "avx512_bf16"), ("amx", "amx_bf16"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = ran(arguments.reports)
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    has, asked, known = machine_has(), set(), set()
    for line in lines:
        name, _, isa = line.partition(" [")
        known.add(name)
        if not isa or has[isa.rstrip("]")]:
            asked.add(name)
    missing, new = sorted(asked - found), sorted(found - known)
    if arguments.update:
        LIST.write_text("\n".join(sorted([*lines, *new])) + "\n")
        new = []
    for name in missing:
        print(f"promised and not run: {name}")
    for name in new:
        print(f"ran and is not in {LIST.name}: {name} (--update adds it)")
    print(f"{len(found & asked)} of {len(asked)} promises ran")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
