"""compute-sanitizer's four tools on a small grid of every CUDA kernel, on layers and graphs."""
import json
import re
import shutil

import gtest

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SUMMARY = re.compile(r"^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", re.M)
PARTS = 4  # processes of a tool


def find(bundle):
    """The machine's own, which fits its driver, before the bundle's."""
    own = bundle / "sanitizer/compute-sanitizer" if bundle else None
    return shutil.which("compute-sanitizer") or (str(own) if own and own.exists() else None)


def errors_of(output):
    """What the tool counts, None when it did not get that far."""
    counts = [int(match[1] or match[2]) for match in SUMMARY.finditer(output)]
    return sum(counts) if counts else None


def complaints(output):
    """The first lines of what a tool says."""
    said = [line for line in output.splitlines() if line.startswith("=====") and line.strip("= ") not in ("", "COMPUTE-SANITIZER")]
    return said[:12]


def verdict_of(tool, parts, runs):
    """The tool's line."""
    line = {"tool": tool, "tests": sum(map(len, parts)), "passed": 0, "errors": 0, "not_run": 0, "seconds": 0.0,
            "complaints": []}
    for part, run in zip(parts, runs):
        if run is None:
            line["not_run"] += len(part)
            continue
        line["seconds"] = round(max(line["seconds"], run.seconds), 1)
        passed = [test for test in part if run.results.get(test) in ("OK", "SKIPPED")]
        line["passed"] += len(passed)
        errors = errors_of(run.output)
        if run.exit_status is None:  # stopped
            line["not_run"] += len(part) - len(passed)
            errors = errors or 0
        elif errors is None or (errors == 0 and run.failures(tool)):  # it broke, or a test failed under it
            errors = 1
        if errors:
            line["errors"] += errors
            line["complaints"] += complaints(run.output)
    return line


def run(bundle, programs, driver_emulated, options, left, report):
    program = next((program for program in programs if program.name == gtest.SMALL_GRID_PROGRAM), None)
    tool_path = find(bundle)
    if driver_emulated or program is None or tool_path is None:
        report.not_there("sanitizer", "the emulated device is no GPU; its own checks were on" if driver_emulated else
                         "there are no test programs" if program is None else "there is no compute-sanitizer")
        return
    environment = gtest.device_environment(True)
    kernels = gtest.small_grid(program, environment, options.tiny)
    work = [(tool, program, part) for part in gtest.split(kernels, PARTS) for tool in TOOLS]
    for other in programs:
        if other.name in gtest.ALSO_SANITIZED:
            part = gtest.list_tests(other, environment, gtest.ALSO_SANITIZED[other.name])
            work += [(tool, other, part) for tool in TOOLS if tool != "initcheck"]  # free slots of a cache hold nothing
    jobs = []
    for n, (tool, tested, part) in enumerate(work):
        command = [tool_path, "--tool", tool, "--port", str(49152 + 16 * n), "--error-exitcode", "99", "--print-limit",
                   "20", str(tested), f"--gtest_filter={':'.join(part)}"]
        jobs.append((command, environment))
    runs = gtest.run_all(jobs, gtest.workers(), left)
    for tool in TOOLS:
        parts = [part for kind, _, part in work if kind == tool]
        mine = [run for (kind, _, _), run in zip(work, runs) if kind == tool]
        refused = [run for run in mine if run and "Device not supported" in run.output]
        if refused:
            report.not_there(f"sanitizer: {tool}", "compute-sanitizer says: Device not supported")
            report.log(f"sanitizer: {tool}", refused[0].output)
            continue
        line = verdict_of(tool, parts, mine)
        print(json.dumps(line), flush=True)
        report.sanitizer.append(line)
        if line["errors"]:
            report.fail(f"sanitizer: {tool}: {line['errors']} errors: {' '.join(line['complaints'][:2])}")
            for run in mine:
                if run and errors_of(run.output) != 0:
                    report.log(f"sanitizer: {tool}", run.output)
                elif run and run.failures(tool):
                    report.log(f"sanitizer: {tool}", run.said(tool))
        if line["not_run"]:
            report.no_time(f"sanitizer: {tool}: {line['not_run']} of {line['tests']} tests")
