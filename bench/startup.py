#!/usr/bin/env python3
"""Times a program from process start to exit: startup.py PROGRAM [RUNS]. Prints the minimum and the median in ms."""

import os
import statistics
import sys
import time


def run_once(program):
    start = time.perf_counter()
    pid = os.posix_spawn(program, [program], os.environ)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit(f"{program} failed: exit status {os.waitstatus_to_exitcode(status)}")
    return seconds * 1e3


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = os.path.abspath(sys.argv[1])
    times = [run_once(program) for _ in range(int(sys.argv[2]) if len(sys.argv) == 3 else 20)]
    print(f"start to first result: min {min(times):.2f} ms, median {statistics.median(times):.2f} ms, "
          f"{len(times)} runs, {os.path.getsize(program) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
