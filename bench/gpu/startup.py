"""What a process pays before its first result: context, plan, first execute; with and without PTX compilation by the
driver. As a program: startup.py LIBRARY CASE [--tiny], one fresh process, prints JSON."""
import json
import os
import pathlib
import statistics
import sys
import time
import zlib

import bench
import cases
import data
import gtest
import tests
from driver import Driver
from heed_api import ELEMENT_BYTES, Heed

LIMIT_MS = 20.0  # plan and first execute, above an execute of a loaded kernel
REPEATS = 5
NO_JIT = {"CUDA_DISABLE_PTX_JIT": "1"}


def startup_cases(tiny):
    """Small problems on kernels of each kind: half types, masks, f32."""
    length = 40 if tiny else 512
    return {case.name: case for case in (
        cases.Case("f16_d128", "f16", 1, 2, 2, length, 128, 128, True),
        cases.Case("bf16_d64_mask", "bf16", 1, 2, 2, length, 64, 64, False, mask=True),
        cases.Case("f32_d128", "f32", 1, 2, 2, length, 128, 128, True))}


def probe(library, name, tiny):
    """Milliseconds of each step, and a digest of the result."""
    steps, last = {}, time.perf_counter()

    def step(what):
        nonlocal last
        now = time.perf_counter()
        steps[what], last = (now - last) * 1e3, now

    driver = Driver()
    step("driver_ms")
    driver.make_context()
    stream = driver.make_stream()
    driver.synchronize(stream)
    step("context_ms")
    case = startup_cases(tiny)[name]
    tiles = {**data.make_tiles("qkv", case.dtype, True), "mask": data.make_mask(True)}
    inputs = bench.Inputs([case], bench.sizes_of, case.dtype, tiles, driver, lambda size: (driver.allocate(size), None))
    heed = Heed(library)
    driver.synchronize(stream)
    step("inputs_ms")
    ours = bench.Ours(heed, case, inputs.buffers, driver, stream)
    step("plan_ms")
    for what in ("first_ms", "second_ms"):
        ours()
        driver.synchronize(stream)
        step(what)
    fault = bench.fault_of(case, ours, inputs, driver, stream)
    out = driver.download(inputs.buffers["out"].address, case.elements()["out"] * ELEMENT_BYTES[case.dtype])
    return {**steps, "kernel": ours.kernel, "digest": zlib.crc32(out), "fault": fault}


def run_probe(library, name, tiny, environment, left):
    command = [sys.executable, "-B", str(pathlib.Path(__file__).resolve()), str(library), name] + ["--tiny"] * tiny
    done = gtest.run(command, {**os.environ, **environment}, left())
    if done.exit_status is None:
        return None
    if done.exit_status != 0:
        return {"fault": f"exit status {done.exit_status}: {done.output.strip()[-300:]}"}
    return json.loads(done.output.splitlines()[-1])


def summarise(name, jit, probes):
    line = {"case": name, "kernel": probes[0]["kernel"], "ptx_jit": jit, "runs": len(probes)}
    for key in ("driver_ms", "context_ms", "plan_ms", "first_ms", "second_ms"):
        line[key] = round(statistics.median(p[key] for p in probes), 3)
    above = [p["plan_ms"] + p["first_ms"] - p["second_ms"] for p in probes]
    line["above_context_ms"], line["above_context_ms_median"] = round(min(above), 3), round(statistics.median(above), 3)
    line["within_limit"] = line["above_context_ms_median"] <= LIMIT_MS
    return line


def run(library, programs, options, left, report):
    digests = {}
    for name in startup_cases(options.tiny):
        for environment in ({}, NO_JIT):
            probes = []
            for _ in range(1 if options.tiny else REPEATS):
                probe_result = run_probe(library, name, options.tiny, environment, left) if left() > 0 else None
                if probe_result is not None:
                    probes.append(probe_result)
            label = f"startup: {name}{' with CUDA_DISABLE_PTX_JIT=1' if environment else ''}"
            faults = [p["fault"] for p in probes if p["fault"]]
            if faults:
                report.fail(f"{label}: {faults[0]}")
            elif not probes:
                report.no_time(label)
            else:
                line = summarise(name, not environment, probes)
                print(json.dumps(line), flush=True)
                report.startup.append(line)
                if len({p["digest"] for p in probes} | digests.setdefault(name, set())) > 1:
                    report.fail(f"{label}: the bits of the result differ between runs")
                digests[name] |= {p["digest"] for p in probes}
    kernel_tests = [program for program in programs if program.name == gtest.SMALL_GRID_PROGRAM]
    if kernel_tests and left() > 0:
        environment = gtest.device_environment(True, **NO_JIT)
        pattern = ":".join(sum(gtest.small_grid(kernel_tests[0], environment, options.tiny), []))
        report.no_jit = tests.run_programs(kernel_tests, pattern, environment, left, report, "tests without PTX JIT")
    else:
        report.not_there("tests of every kernel with CUDA_DISABLE_PTX_JIT=1",
                         "no time was left" if kernel_tests else "there are no test programs", time=bool(kernel_tests))


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], "--tiny" in sys.argv)))
