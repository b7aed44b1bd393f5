"""Seeds faults, one at a time, into a copy of the sources; builds the few kernels that show them; runs the tests that
should notice. A fault is caught when at least two named tests fail.

    ./dev mutate                     all faults (minutes), writes the table to tests/mutation/README.md
    ./dev mutate --only NAME ...     some of them; the table keeps the results of the others
    ./dev mutate --list | --check    the faults | that each text to replace occurs once in its file, no build

Exit status 1 when a fault is not caught or does not apply.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).resolve().parent / "README.md"
# One kernel of each kind, of AVX2: what changes between instruction sets is in the schedules' numbers.
KERNELS = "|".join([
    "^attention_prefill_f32_d64_contiguous_avx2$",
    "^attention_decode_f32_d64_(gqa_)?contiguous_avx2$",
    "^attention_(prefill|decode)_f32_dany_alibi_bias_dropout_.*_paged_avx2$",
    "^attention_decode_f32_kvi8_dany_.*_avx2$",
    "^(merge_states|rope)_f32_avx2$",
])
PROGRAMS = {
    "api": ("api_test", "tests/api/api_test"),
    "kernel": ("heed_kernel_tests", "tests/kernel/heed_kernel_tests"),
    "adversarial": ("heed_adversarial_tests", "tests/adversarial/heed_adversarial_tests"),
    "ops": ("heed_ops_tests", "tests/ops/heed_ops_tests"),
    "random": ("heed_random_tests", "tests/random/heed_random_tests"),
}
RANDOM = ["--problems", "400", "--no-shrink"]
SECONDS = 120  # of one run of a program
ENOUGH = 2


def copy_tree(to):
    """The tracked and new files, each written only where it differs: builds stay incremental."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        source, copy = ROOT / name, to / name
        if not source.is_file() or (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def problems_of(fault, folder):
    """Why the fault cannot be seeded."""
    words = []
    for file, old, new in fault.edits:
        count = (folder / file).read_text().count(old)
        if count != 1:
            words.append(f"{fault.name}: the text to replace occurs {count} times in {file}")
        if old == new:
            words.append(f"{fault.name}: nothing changes")
    return words


class Seeded:
    """While it lives, the copy has the fault."""

    def __init__(self, fault, folder):
        self.edits = [(folder / file, old, new) for file, old, new in fault.edits]
        self.kept = {path: path.read_text() for path, _, _ in self.edits}

    def __enter__(self):
        for path, old, new in self.edits:
            path.write_text(path.read_text().replace(old, new))

    def __exit__(self, *_):
        for path, text in self.kept.items():
            path.write_text(text)


class TrialBuilder:
    def __init__(self, folder, halide):
        self.source, self.build = folder / "source", folder / "build"
        self.halide = halide
        self.log = folder / "log.txt"

    def prepare(self):
        self.source.mkdir(parents=True, exist_ok=True)
        copy_tree(self.source)
        self.run(["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.halide}",
                  "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DHEED_KERNEL_FILTER={KERNELS}",
                  "-DHEED_CUDA=OFF", "-DHEED_BUILD_BENCH=OFF", "-DHEED_BUILD_DEMO=OFF", f"-DHEED_PYTHON={sys.executable}"])

    def run(self, command):
        with open(self.log, "w") as log:
            done = subprocess.run([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise RuntimeError(f"failed: {command[0]} ..., see {self.log}")

    def make(self, programs):
        self.run(["cmake", "--build", self.build, "--target", *sorted(PROGRAMS[name][0] for name in programs)])

    def output_of(self, program, arguments):
        """Exit status (None: too slow) and output."""
        command = [str(self.build / PROGRAMS[program][1]), *arguments]
        environment = {**os.environ, "GTEST_COLOR": "no"}
        environment.pop("HEED_FORCE_KERNEL", None)
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=environment, cwd=self.build)
            return done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as expired:
            return None, (expired.stdout or b"").decode(errors="replace")

    def failing_tests(self, program, tests):
        if program == "random":
            return set() if self.output_of(program, RANDOM)[0] == 0 else {"random"}
        failed, skipped = set(), []
        while True:
            exclusion = "-" + ":".join(skipped) if skipped else ""
            status, output = self.output_of(program, [f"--gtest_filter={tests}{exclusion}"])
            failed |= {short_name(line) for line in re.findall(r"^\[  FAILED  \] (\S+)", output, re.M)} - {""}
            if status in (0, 1) or len(failed) + len(skipped) >= ENOUGH:
                return failed | set(map(bare, skipped))
            # It crashed or hung: the test that ran then is noted, the others get their turn without it.
            started = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
            if not started:
                return failed | set(map(bare, skipped))
            skipped.append("*" + short_name(started[-1]) + "*")


def short_name(name):
    """Suite.Test of a test's full name, "" of the summary's lines."""
    match = re.search(r"(?:^|/)(\w+\.\w+)", name)
    return match.group(1) if match else ""


def bare(pattern):
    return pattern.strip("*")


def catch(builder, fault):
    """The tests that notice."""
    caught = set()
    tests = {**fault.tests, "random": ""}
    with Seeded(fault, builder.source):
        try:
            builder.make(tests)
        except RuntimeError as error:
            print(f"{fault.name}: does not build; {error}")
            return []
        for program, names in tests.items():
            caught |= builder.failing_tests(program, names)
    return sorted(caught)


def check_baseline(builder, faults):
    """Without a fault every test that is asked must pass."""
    programs = {"random": ""}
    for fault in faults:
        for program, names in fault.tests.items():
            programs[program] = ":".join(sorted(set(programs.get(program, "").split(":")) | set(names.split(":"))))
    builder.make(programs)
    failing = {}
    for program, names in programs.items():
        failed = builder.failing_tests(program, names.strip(":"))
        if failed:
            failing[program] = sorted(failed)
    if failing:
        raise RuntimeError(f"tests fail without any fault: {failing}")


def table(results):
    lines = ["| fault | where | caught by |", "|---|---|---|"]
    for fault in FAULTS:
        files = ", ".join(sorted({file for file, _, _ in fault.edits}))
        caught = results.get(fault.name)
        words = "not run yet" if caught is None else ", ".join(f"`{name}`" for name in caught) or "NOTHING"
        lines.append(f"| {fault.name}: {fault.words} | `{files}` | {words} |")
    return "\n".join(lines) + "\n"


def read_table():
    """What table() wrote: by fault, the tests that noticed."""
    results = {}
    for line in TABLE.read_text().splitlines():
        if match := re.match(r"\| (\w+): .* \| ([^|]*) \|$", line):
            if match[2] != "not run yet":
                results[match[1]] = re.findall(r"`([^`]+)`", match[2])
    return results


def write_table(results):
    text = TABLE.read_text()
    head = text[:text.index("| fault |")]
    TABLE.write_text(head + table(results))


def run(builder, faults, baseline):
    builder.prepare()
    results = read_table()
    if baseline:
        check_baseline(builder, faults)
    missed = []
    for fault in faults:
        start = time.monotonic()
        results[fault.name] = caught = catch(builder, fault)
        write_table(results)
        if len(caught) < ENOUGH:
            missed.append(fault.name)
        print(f"{fault.name:28} {len(caught):3} {'' if len(caught) >= ENOUGH else 'TOO FEW '}"
              f"{', '.join(caught)}  ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(faults) - len(missed)} of {len(faults)} faults caught by at least {ENOUGH} tests")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "mutation", help="where the copy is built")
    parser.add_argument("--halide", type=Path, help="the folder of the Python package halide")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    if options.only and len(faults) != len(set(options.only)):
        parser.error(f"unknown among {options.only}; see --list")
    if options.list:
        for fault in faults:
            print(f"{fault.name:28} {fault.words}")
        return 0
    wrong = [words for fault in faults for words in problems_of(fault, ROOT)]
    if wrong or options.check:
        print("\n".join(wrong) or f"{len(faults)} faults apply")
        return 1 if wrong else 0
    return 1 if run(TrialBuilder(options.build.resolve(), options.halide), faults, not options.no_baseline) else 0


if __name__ == "__main__":
    sys.exit(main())
