"""What a kernel of the table became: its loop nest, its hot loop in machine code, what that loop can reach.

    inspect_kernel.py BUILD KERNEL [--cpu CPU ...] [--chip sm_90] [--nvdisasm PROGRAM] [--measure CASE]

On x86 it shows the loops as Halide lowered them, the scratch of a task, the innermost loop with most arithmetic, and what
llvm-mca says of that loop for each CPU: ports, cycles of an iteration, the share of the peak of FMA that they allow. --measure
also runs heed_bench on a case that takes the kernel. On CUDA it shows registers, spills and shared memory as ptxas reports them,
and the innermost loop with most HMMA, or FFMA, as nvdisasm prints it."""
import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import profile_kernel
from sass import hottest_loop

FMA = re.compile(r"^vfn?m(add|sub)\d*ps$")
# What a loop is taken for: by its arithmetic, a tile product counting for the 16 rows of dot products that it is.
WEIGHTS = ((re.compile(r"^tdpbf16ps$"), 256), (re.compile(r"^vdpbf16ps$"), 2), (FMA, 1), (re.compile(r"^v(mul|add)ps$"), 0.5))
FMA_PER_CYCLE = 2  # of cores with two units, whatever the width


def loop_nest(stmt):
    """Loops, stages and allocations of the lowered code, without the statements in them; loops of nothing are left out."""
    lines, stack = [], []
    for line in stmt.splitlines():
        text = line.strip()
        if match := re.match(r"(?:internal |external_plus_argv )?func (\S+)", text):
            lines.append(f"func {match[1]}")
            stack = [len(lines)]
        elif match := re.match(r"(for|parallel)\s?\((.*)\) {|produce (\S+) {|allocate (.*)", text):
            indent = 2 * sum(opened for opened in stack[1:])
            if match[4]:
                lines.append(" " * (indent + 2) + f"allocate {match[4]}")
            elif match[3]:
                lines.append(" " * (indent + 2) + f"produce {match[3]}")
            else:
                variable, begin, extent = (match[2].split(", ", 2) + ["", ""])[:3]
                lines.append(" " * (indent + 2) + f"{match[1]} {variable} of {extent if len(extent) < 60 else '...'}")
        if text.endswith("{"):
            stack.append(1 if re.match(r"(for|parallel|produce)\b", text) else 0)
        elif text == "}" and len(stack) > 1:
            stack.pop()
    return lines


def hot_loop(functions):
    """The basic block that jumps back to itself with most arithmetic."""
    best = (0, None, [])
    for name, instructions in functions.items():
        blocks = collections.defaultdict(list)
        for instruction in instructions:
            blocks[instruction.block].append(instruction)
        for block, body in blocks.items():
            if not any(i.opcode.startswith("j") and i.text.split()[-1] == block for i in body):
                continue
            work = sum(weight for i in body for opcode, weight in WEIGHTS if opcode.match(i.opcode))
            if work > best[0]:
                best = (work, name, body)
    return best


def predict(body, cpu):
    """llvm-mca's report and cycles of an iteration; None where it does not know the CPU."""
    report, _ = profile_kernel.mca(body, cpu, "-iterations=200")
    return report and (report, int(re.search(r"Total Cycles:\s+(\d+)", report)[1]) / 200)


def inspect_x86(arguments, base):
    print("LOOPS\n" + "\n".join(loop_nest(base.with_suffix(".stmt").read_text())))
    fields = base.with_suffix(".inc").read_text().split(", ")
    print(f"\nSCRATCH of a task: {fields[11]} bytes; rows of a task: {fields[9]}, keys of a block: {fields[10]}")
    work, function, body = hot_loop(profile_kernel.instructions_of(profile_kernel.assembly_of(arguments.build, arguments.kernel)))
    if not work:
        sys.exit("no loop of the kernel holds arithmetic on vectors")
    mix = collections.Counter(i.opcode for i in body)
    print(f"\nHOT LOOP, {body[0].stage} in {function}: {len(body)} instructions: " +
          ", ".join(f"{count} {opcode}" for opcode, count in mix.most_common(8)))
    print("\n".join("    " + i.text for i in body))
    for cpu in arguments.cpu:
        predicted = predict(body, cpu)
        if predicted is None:
            print(f"\n{cpu}: llvm-mca does not know it")
            continue
        report, cycles = predicted
        fma = sum(count for opcode, count in mix.items() if FMA.match(opcode))
        share = f": {100 * fma / cycles / FMA_PER_CYCLE:.0f} % of {FMA_PER_CYCLE} FMA a cycle" if fma else ""
        print(f"\n{cpu}: {cycles:.1f} cycles an iteration{share}\n{report}")
    if arguments.measure:
        measure(arguments)


def measure(arguments):
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.json"
        command = [arguments.build / "bench/heed_bench", "--filter", arguments.measure, "--kernels", arguments.kernel, "--threads",
                   "1", "--rounds", "3", "--json", report]
        dtype = re.match(r"attention_\w+?_(f32|f16|bf16)_", arguments.kernel)[1]
        subprocess.run([str(part) for part in [*command, "--dtype", dtype]], check=True, stdout=subprocess.DEVNULL)
        for result in json.loads(pathlib.Path(report).read_text())["results"]:
            print(f"MEASURED on this machine, {result['case']}: {result['ours_ms']:.3f} ms, "
                  f"{100 * result['share_of_ceiling']:.0f} % of {result['ceiling_name']}, masked blocks, softmax and copies included")


def inspect_cuda(arguments, base):
    for line in base.with_suffix(".limits").read_text().splitlines():
        chip, *fields = line.split()
        print(f"{chip}: " + ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in zip(fields[::2], fields[1::2])))
    chips = [line.split()[0] for line in base.with_suffix(".limits").read_text().splitlines()]
    chip = arguments.chip or chips[-1]
    if chip not in chips:
        sys.exit(f"--chip {chip}: the kernel was built for {', '.join(chips)}")
    sass = subprocess.run([arguments.nvdisasm, "-c", "-ndf", base.with_suffix(f".{chip}.cubin")], check=True, capture_output=True, text=True)
    body = hottest_loop(sass.stdout, "HMMA") or hottest_loop(sass.stdout, "FFMA")
    mix = collections.Counter(opcode for opcode, _ in body)
    print(f"\nHOT LOOP on {chip}: {sum(mix.values())} instructions: " +
          ", ".join(f"{count} {opcode}" for opcode, count in mix.most_common(12)))
    print("\n".join(f"    {text}" for _, text in body))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernel")
    parser.add_argument("--cpu", nargs="+", default=["sapphirerapids"], help="names that llvm-mca knows")
    parser.add_argument("--chip", help="a CUDA kernel's, such as sm_90; default: the last that it was built for")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--measure", metavar="CASE", help="a case of heed_bench")
    arguments = parser.parse_args()
    base = arguments.build / "heed_kernels.dir" / arguments.kernel
    if not base.with_suffix(".inc").exists():
        names = [path.stem for path in sorted(base.parent.glob("*.inc"))]
        close = [name for name in names if arguments.kernel in name] or names
        sys.exit(f"there is no kernel {arguments.kernel} in {arguments.build}; there are {', '.join(close[:20])}" +
                 (f" and {len(close) - 20} more" if len(close) > 20 else ""))
    if base.with_suffix(".limits").exists():
        inspect_cuda(arguments, base)
    elif shutil.which("llvm-mca") is None:
        sys.exit("llvm-mca is missing (Debian: llvm-14)")
    else:
        inspect_x86(arguments, base)


if __name__ == "__main__":
    main()
