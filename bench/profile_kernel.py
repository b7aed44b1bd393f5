"""Where the time of a benchmark case goes: the share of each stage of the algorithm, and its hottest loops.

    profile_kernel.py BUILD CASE [--dtype f32|f16|bf16] [--kernel NAME] [--threads N] [--loops N]

Samples heed_bench with perf (by cycles where the machine counts them, else by time) and finds the stage of each sample:
the kernel's assembly, which is made anew and which Halide labels by stage, together with its object file, which has the same
instructions at known offsets. With llvm-mca on the PATH, also its report of the hottest loop: bounds by port, latency and dispatch."""
import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import build_parts

MODELS = ("znver4", "sapphirerapids", "icelake-server")  # for llvm-mca, the first that it knows
NOP = re.compile(r"^(nop\w?|xchg\s+%ax,%ax|data16|cs nop\w?)")


class Instruction:
    def __init__(self, text, block, stage):
        self.text, self.block, self.stage = text, block, stage

    @property
    def opcode(self):
        return self.text.split()[0]


def stage_of(label):
    """'16_for_value_tile_full.s1.pairs_full$x.outer' is value_tile_full."""
    match = re.search(r"(?:for|produce|consume|if|then|next)_?(?:bb\d+_)?([A-Za-z]\w*?)(?:\.s\d+|$|\.|\")", label)
    return match[1] if match else None


def assembly_of(build, kernel):
    """The assembly of a kernel of the build's table, by its generator."""
    parts = build_parts.parts_of(build)
    arguments, tuned = build_parts.arguments_of(parts, kernel)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([parts["generator"], f"name={kernel}", *arguments, *tuned, "write=assembly", f"out={folder}"], check=True)
        return pathlib.Path(folder, f"{kernel}.s").read_text()


def instructions_of(assembly):
    """By function: its instructions in order, with their basic block and stage."""
    functions, current, block, stage = {}, None, "", "outside of loops"
    for line in assembly.splitlines():
        label = re.match(r"^([A-Za-z_][\w$.]*):", line)
        if label and not label[1].startswith(".L"):
            current, stage = functions.setdefault(label[1], []), "outside of loops"
            continue
        if match := re.match(r"^(?:(\.LBB\w+):|# (%bb\.\d+):)\s*(?:#\s*(%.*))?", line):
            block = match[1] or match[2]
            stage = stage_of(match[3] or "") or stage
        elif current is not None and re.match(r"^\t[a-z]", line):
            current.append(Instruction(line.split("#")[0].strip(), block, stage))
    return functions


def offsets_of(object_file):
    """By function: the offsets of its instructions, without padding."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", object_file], check=True, capture_output=True,
                             text=True).stdout
    functions, current, begin = {}, None, 0
    for line in listing.splitlines():
        if match := re.match(r"^([0-9a-f]+) <(.+)>:$", line):
            current, begin = functions.setdefault(match[2], []), int(match[1], 16)
        elif (match := re.match(r"^\s*([0-9a-f]+):\s+(.*)", line)) and not NOP.match(match[2]):
            current.append(int(match[1], 16) - begin)
    return functions


def record(command, data):
    for event in ("cycles:u", "cpu-clock"):
        result = subprocess.run(["perf", "record", "-q", "-e", event, "-F", "4999", "-o", data, "--", *command],
                                capture_output=True, text=True)
        if result.returncode == 0:
            return event
    sys.exit(f"perf record failed: {result.stderr}")


def instructions_per_cycle(command):
    """The average over the whole process; None where the machine does not count."""
    result = subprocess.run(["perf", "stat", "-x,", "-e", "instructions:u,cycles:u", "--", *command], capture_output=True,
                            text=True)
    counts = re.findall(r"^(\d+),,(?:instructions|cycles):u", result.stderr, re.M)
    return int(counts[0]) / int(counts[1]) if len(counts) == 2 and int(counts[1]) else None


def samples_of(data):
    """By function and offset."""
    script = subprocess.run(["perf", "script", "-i", data, "-F", "ip,sym,symoff"], check=True, capture_output=True,
                            text=True).stdout
    samples = collections.Counter()
    for line in script.splitlines():
        if match := re.match(r"\s*[0-9a-f]+\s+(\S+)\+0x([0-9a-f]+)", line):
            samples[match[1], int(match[2], 16)] += 1
    return samples


def attribute(samples, listing, offsets):
    """Samples by stage, and by (function, block)."""
    stages, blocks = collections.Counter(), collections.Counter()
    for (function, offset), count in samples.items():
        if function not in listing or len(listing[function]) != len(offsets.get(function, [])):
            stages["outside of the kernel"] += count
            continue
        places = {place: i for i, place in enumerate(offsets[function])}
        if offset in places:
            instruction = listing[function][places[offset]]
            stages[instruction.stage] += count
            blocks[function, instruction.block] += count
    return stages, blocks


def print_loops(blocks, listing, total, number):
    for (function, block), count in blocks.most_common(number):
        body = [i for i in listing[function] if i.block == block]
        mix = collections.Counter(i.opcode for i in body).most_common(8)
        print(f"{100 * count / total:5.1f} %  {body[0].stage:24} {len(body):4} instructions: " +
              ", ".join(f"{count} {opcode}" for opcode, count in mix))


def mca(body, chip, *options):
    """llvm-mca's report on a loop, None where it does not know the chip; and its complaint."""
    text = "\n".join(i.text for i in body if not i.opcode.startswith("j"))
    result = subprocess.run(["llvm-mca", f"-mcpu={chip}", "-bottleneck-analysis", *options], input=text, capture_output=True,
                            text=True)
    known = result.returncode == 0 and "not a recognized processor" not in result.stderr
    return result.stdout if known else None, result.stderr


def print_mca(blocks, listing):
    function, block = blocks.most_common(1)[0][0]
    for chip in MODELS:
        report, complaint = mca([i for i in listing[function] if i.block == block], chip)
        if report is not None:
            print(f"llvm-mca, {chip}, the hottest loop:\n{report}")
            return
    print(f"llvm-mca failed: {complaint}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("case")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--kernel", help="a kernel's name; default: the plan's choice")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--loops", type=int, default=8)
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is missing (Debian: linux-perf)")
    with tempfile.TemporaryDirectory() as folder:
        report, data = f"{folder}/report.json", f"{folder}/perf.data"
        command = [arguments.build / "bench/heed_bench", "--filter", arguments.case, "--dtype", arguments.dtype,
                   "--threads", arguments.threads, "--rounds", "3", "--json", report]
        if arguments.kernel:
            command += ["--kernels", arguments.kernel]
        command = [str(part) for part in command]
        event = record(command, data)
        per_cycle = instructions_per_cycle(command) if event == "cycles:u" else None
        samples = samples_of(data)
        results = json.loads(pathlib.Path(report).read_text())
    kernel = arguments.kernel or results["results"][0]["kernel"]
    base = arguments.build / "heed_kernels.dir" / kernel
    listing = instructions_of(assembly_of(arguments.build, kernel))
    stages, blocks = attribute(samples, listing, offsets_of(base.with_suffix(".o")))
    total = sum(count for stage, count in stages.items() if stage != "outside of the kernel")
    if total == 0:
        sys.exit(f"no sample is in {kernel}")
    print(f"{arguments.case}, {kernel}, {arguments.threads} threads, {total} samples by {event}")
    print("instructions per cycle: " + (f"{per_cycle:.2f}\n" if per_cycle else "not counted on this machine\n"))
    for stage, count in stages.most_common():
        if stage != "outside of the kernel" and count >= total / 500:
            print(f"{100 * count / total:5.1f} %  {stage}")
    print()
    print_loops(blocks, listing, total, arguments.loops)
    if shutil.which("llvm-mca"):
        print_mca(blocks, listing)


if __name__ == "__main__":
    main()
