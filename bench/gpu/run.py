#!/usr/bin/env python3
"""Heed on a GPU, from prebuilt files: tests, compute-sanitizer, start-up, benchmarks. No network, no compiler.

Exit status: 0 all is well, 1 something failed, 2 wrong use, 3 no driver or GPU, 4 all is well as far as time went."""
import argparse
import json
import pathlib
import re
import sys
import time

import bench
import decode
import gradients
import sanitizer
import startup
import tests
from driver import Driver, DriverError, NoDevice
from heed_api import Heed, HeedError
from report import Report, ask_smi

HERE = pathlib.Path(__file__).resolve().parent
PHASES = {"tests": 190, "sanitizer": 120, "startup": 30, "bench": 80, "decode": 60, "gradients": 60}  # shares of the time
NO_DEVICE_HELP = """heed: {reason}.
This command needs an NVIDIA GPU of compute capability 7.5 or newer and a driver for CUDA 13 (580 or newer).
- On a machine with a GPU: `nvidia-smi` must list it. In a container: start it with `--gpus all`.
- Elsewhere: bring this folder, or the bundle's heed-gpu.tar.xz alone, to such a machine and run it there.
"""


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path, help="the unpacked bundle; default: the one this script is in")
    parser.add_argument("--library", type=pathlib.Path, help="libheed.so; default: the bundle's")
    parser.add_argument("--only", help=f"phases, of {','.join(PHASES)}")
    parser.add_argument("--seconds", type=float, default=540, help="for all phases together")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file; default: cuda_<gpu>.json in bench/results")
    parser.add_argument("--tiny", action="store_true", help="a few small problems, for the emulated device")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else list(PHASES)
    unknown = [phase for phase in options.only if phase not in PHASES]
    if unknown:
        parser.error(f"--only: there is no phase {unknown[0]}; there are {', '.join(PHASES)}")
    if options.bundle is None and (HERE.parents[1] / "lib/libheed.so").exists():
        options.bundle = HERE.parents[1]
    if options.library is None:
        if options.bundle is None:
            parser.error("no bundle: name one with --bundle (./dev gpu-bundle makes it), or --library libheed.so")
        options.library = options.bundle / "lib/libheed.so"
    if not options.library.exists():
        parser.error(f"there is no {options.library}")
    return options


def default_out(gpu, options):
    """A part of the phases does not replace a whole run's file."""
    name = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?i)^nvidia ", "", gpu).lower()).strip("_")
    parts = [] if set(options.only) == set(PHASES) else [phase for phase in PHASES if phase in options.only]
    folder = HERE.parent / "results"
    file = "_".join(["cuda", name, *parts, *["tiny"] * options.tiny]) + ".json"
    return (folder if folder.exists() else pathlib.Path.cwd()) / file


class Clock:
    """Shares what is left of the time among the phases to come."""

    def __init__(self, seconds, phases):
        self._end, self._phases = time.monotonic() + seconds, list(phases)

    def phase(self, name):
        """A function that says how many seconds the phase has left."""
        left = self._end - time.monotonic()
        share = PHASES[name] / sum(PHASES[phase] for phase in self._phases)
        self._phases.remove(name)
        end = time.monotonic() + max(left, 0) * share
        return lambda: end - time.monotonic()


def run_phases(driver, heed, options, report):
    programs = sorted((options.bundle / "bin").glob("heed_*_tests"), reverse=True) if options.bundle else []
    out = options.out or default_out(driver.name, options)
    chosen = [phase for phase in PHASES if phase in options.only]
    clock = Clock(options.seconds, chosen)
    for phase in chosen:
        print(f"\n== {phase}", flush=True)
        left, start = clock.phase(phase), time.monotonic()
        try:
            if phase == "tests":
                tests.run(programs, options, left, report)
            elif phase == "sanitizer":
                sanitizer.run(options.bundle, programs, driver.emulated, options, left, report)
            elif phase == "startup":
                startup.run(options.library, programs, options, left, report)
            else:
                driver.make_context()
                {"bench": bench, "decode": decode, "gradients": gradients}[phase].run(driver, heed, options, left, report)
        except (DriverError, HeedError, RuntimeError, OSError) as error:  # the other phases go on
            report.fail(f"{phase}: {type(error).__name__}: {error}")
        report.seconds[phase] = round(time.monotonic() - start, 1)
        report.facts["smi_after"] = ask_smi()
        report.write(out)
    report.print_end(out)
    return report.exit_status()


def main(arguments):
    options = parse(arguments)
    try:
        driver = Driver()
    except NoDevice as error:
        print(NO_DEVICE_HELP.format(reason=error), end="", file=sys.stderr)
        return 3
    heed = Heed(options.library)
    manifest = options.bundle / "manifest.json" if options.bundle else None
    known = json.loads(manifest.read_text(encoding="utf-8")) if manifest and manifest.exists() else None
    report = Report(driver, heed, known, options)
    print("== machine\n" + json.dumps(report.facts))
    return run_phases(driver, heed, options, report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
