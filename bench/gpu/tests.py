"""The test programs of the bundle on the CUDA kernels."""
import json

import gtest


def summary(name, tests, runs):
    """One program's line: counts, and what failed."""
    results, failures = {}, []
    for run in runs:
        if run is not None:
            results.update(run.results)
            failures += run.failures(name)
    counted = list(results.values())
    not_run = len([test for test in tests if test not in results])
    return {"program": name, "tests": len(tests), "passed": counted.count("OK"), "failed": len(failures),
            "skipped": counted.count("SKIPPED"), "not_run": not_run, "failures": failures[:50]}


def run_programs(programs, pattern, environment, left, report, label="tests"):
    """`pattern` "*" is left out: the programs then also look that every instruction set ran. Each has an equal share of the
    time that those before it have left."""
    lines = []
    for done, program in enumerate(programs):
        begin = left()
        after = begin - begin / (len(programs) - done)
        tests = gtest.list_tests(program, environment, pattern)
        shards = min(gtest.workers(), max(1, len(tests)))
        command = [str(program)] + ([f"--gtest_filter={pattern}"] if pattern != "*" else [])
        jobs = [(command, {**environment, "GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(n)})
                for n in range(shards)]
        runs = gtest.run_all(jobs, gtest.workers(), lambda after=after: left() - after)
        line = {**summary(program.name, tests, runs), "seconds": round(begin - left(), 1)}
        print(json.dumps(line), flush=True)
        lines.append(line)
        for run in runs:
            if run is not None and run.failures(program.name):
                report.log(f"{label}: {program.name}", run.said(program.name))
        if line["failed"]:
            report.fail(f"{label}: {program.name}: {line['failed']} failed: {', '.join(line['failures'][:5])}")
        stopped = any(run is None or run.exit_status is None for run in runs)
        if line["not_run"]:
            report.not_there(f"{label}: {line['not_run']} of {line['tests']} tests of {program.name}",
                             "no time was left" if stopped else "the program died", time=stopped)
    return lines


def run(programs, options, left, report):
    if not programs:
        report.not_there("tests", "there are no test programs; run from a bundle (./dev gpu-bundle)")
        return
    environment = gtest.device_environment(options.tiny)
    if options.tiny:
        programs = [program for program in programs if program.name == gtest.SMALL_GRID_PROGRAM]
        pattern = ":".join(test for kernel in gtest.small_grid(programs[0], environment, True) for test in kernel)
    else:
        pattern = "*"
    report.tests = run_programs(programs, pattern, environment, left, report)
