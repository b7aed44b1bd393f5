"""What a build's kernels and heed_bench are made of: tune.json in the build's folder."""
import json
import pathlib


def parts_of(build):
    return json.loads((build / "tune.json").read_text())


def arguments_of(parts, kernel):
    """The arguments of heed_generate for a kernel of the table: what the kernel is, and its parameters in schedules/tuned."""
    kernels = dict(line.split(" ", 1) for line in pathlib.Path(parts["kernels"]).read_text().splitlines())
    if kernel not in kernels:
        raise SystemExit(f"no kernel of the table is named {kernel}")
    arguments, _, tuned = kernels[kernel].partition(" | ")
    return arguments.split(), tuned.split()
