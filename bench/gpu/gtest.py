"""Runs GoogleTest programs: which tests they have, how each ended, also when the program died or was stopped."""
import concurrent.futures
import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import time

ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^ ,]+).*\(\d+ ms\)$")
BEGAN = re.compile(r"^\[ RUN +\] (\S+)$")


@dataclasses.dataclass
class Run:
    """The tests of one process; results: {test: "OK", "FAILED" or "SKIPPED"}."""
    results: dict
    exit_status: int  # None: it was stopped at its time limit
    seconds: float
    output: str

    def failures(self, name):
        """Tests that failed, and the one in which the process died."""
        failed = [test for test, result in self.results.items() if result == "FAILED"]
        if self.exit_status in (0, None) or failed:
            return failed
        began = [match[1] for match in map(BEGAN.match, self.output.splitlines()) if match]
        last = next((test for test in reversed(began) if test not in self.results), None)
        return [f"{last or name} (exit status {self.exit_status})"]

    def said(self, name):
        """What failing tests printed, or the end of it all."""
        lines, kept, test, failed = self.output.splitlines(), [], None, set(self.failures(name))
        for line in lines:
            began, ended = BEGAN.match(line), ENDED.match(line)
            test = began[1] if began else test
            kept += [line] if test in failed else []
            test = None if ended else test
        return "\n".join(kept or lines[-60:])


def parse(output):
    return {match[2]: match[1] for match in map(ENDED.match, output.splitlines()) if match}


def list_tests(program, environment, pattern="*"):
    done = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{program} --gtest_list_tests: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    tests, suite = [], ""
    for line in done.stdout.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            tests.append(suite + word)
        elif word.endswith("."):
            suite = word
    return tests


def run(command, environment, seconds):
    """Ends the process and its children after `seconds`."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as file:
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                              start_new_session=True) as process:
            try:
                status = process.wait(max(seconds, 0.1))
            except subprocess.TimeoutExpired:
                status = None
                os.killpg(process.pid, signal.SIGKILL)
        file.seek(0)
        output = file.read().decode(errors="replace")
    return Run(parse(output), status, time.monotonic() - start, output)


def run_all(jobs, workers, left):
    """Runs of [(command, environment)], several at a time, in order; left() seconds remain for all. None for a job
    that did not begin."""
    def one(job):
        return run(*job, left()) if left() > 0 else None
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, jobs))


def workers():
    return max(1, min(16, len(os.sched_getaffinity(0))))


def device_environment(tiny, **more):
    """For test programs: CUDA kernels; on the emulated device smaller sizes."""
    return {**os.environ, "HEED_TEST_DEVICE": "cuda", **({"HEED_TEST_SLOW": "1"} if tiny else {}), **more}


# Tests that run each kernel on a few small tiles: several blocks, ragged sequences, masks and biases. And, for the kernel
# that reads metadata on the device, one kernel's tests of it.
SMALL_GRID = "Kernels/Shapes.SeveralBlocks/*:Kernels/StoredTokens.MixedBatch/*:Kernels/StorageScores.CornersOfMaskAndBias/*"
OF_ONE_KERNEL = ("Kernels/DeviceMetadata.GivesTheBitsOfHostMetadata/*", "Kernels/DeviceMetadata.FaultsAreReported/*")
SMALL_GRID_PROGRAM = "heed_kernel_tests"
# What other programs have for compute-sanitizer: whole layers and their caches, graphs. No call of the driver fails in them.
ALSO_SANITIZED = {"heed_device_layer_tests": "CudaLayer.*:Kinds/LayerCache.*-CudaLayer.MemoryComesBack",
                  "heed_device_ops_tests": "Storage/Graphs.*"}


def small_grid(program, environment, tiny):
    """[[tests of a kernel]]."""
    kernels = {}
    for test in list_tests(program, environment, SMALL_GRID.split(":", maxsplit=1)[0] if tiny else SMALL_GRID):
        kernels.setdefault(test.split("/")[-1], []).append(test)
    chosen = list(kernels.values())
    if tiny or not chosen:
        return chosen[:2]
    for pattern in OF_ONE_KERNEL:
        chosen[0] += list_tests(program, environment, pattern)[:1]
    return chosen


def split(kernels, count):
    """The kernels' tests in at most `count` parts, each kernel in one part."""
    parts = [[test for kernel in kernels[n::count] for test in kernel] for n in range(count)]
    return [part for part in parts if part]
