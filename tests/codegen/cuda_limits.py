"""What ptxas and the machine code say of the CUDA kernels, compared with the table next to this file.

    cuda_limits.py DIR NVDISASM [--update] [--code CHIP]

DIR holds NAME.limits and NAME.sm_XX.cubin of each kernel. Prints one line per kernel and capability: registers, bytes spilled,
shared memory of a block, instructions of the innermost loop with most HMMA (its cold branches included), the HMMA in it,
instructions of the kernel. Exit status 1 when a line differs from the table, or a kernel spills. Kernels that were not built are
left out; --update writes those that were. --code: looks at the code for one chip only, such as sm_90 (nvdisasm takes half a
second for each file), and at what ptxas says for all."""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "bench"))

from sass import hottest_loop, instructions

TABLE = pathlib.Path(__file__).with_name("cuda_limits.txt")
COLUMNS = ["registers", "spill_bytes", "shared_bytes", "loop", "hmma", "instructions"]


def measure_binary(nvdisasm, path, line, chip):
    """As many of COLUMNS as are asked for."""
    capability, *fields = line.split()
    values = {name: int(value) for name, value in zip(fields[::2], fields[1::2])}
    if chip not in ("", capability):
        return (path.stem, capability), [values[name] for name in COLUMNS[:3]]
    cubin = path.with_suffix(f".{capability}.cubin")
    sass = subprocess.run([nvdisasm, "-c", "-ndf", cubin], check=True, capture_output=True, text=True).stdout
    loop = hottest_loop(sass, "HMMA")
    values["loop"], values["hmma"] = len(loop), sum(opcode == "HMMA" for opcode, _ in loop)
    values["instructions"] = len(instructions(sass))
    return (path.stem, capability), [values[name] for name in COLUMNS]


def measure(directory, nvdisasm, chip):
    with concurrent.futures.ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(measure_binary, nvdisasm, path, line, chip)
            for path in sorted(pathlib.Path(directory).glob("*.limits"))
            for line in path.read_text().splitlines()
        ]
        return dict(job.result() for job in jobs)


def read_table():
    kernels = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        if not line.startswith("#"):
            name, capability, *values = line.split()
            kernels[name, capability] = [int(value) for value in values]
    return kernels


def text_of(kernels):
    width = max(len(name) for name, _ in kernels)
    lines = [f"# {'kernel':<{width - 2}} {'chip':<7}" + "".join(f"{name:>14}" for name in COLUMNS)]
    for (name, capability), values in sorted(kernels.items()):
        lines.append(f"{name:<{width}} {capability:<7}" + "".join(f"{value:>14}" for value in values))
    return "\n".join(lines) + "\n"


def main(directory, nvdisasm, update, chip):
    measured = measure(directory, nvdisasm, chip)
    if not measured:
        sys.exit(f"no CUDA kernel was built in {directory}")
    print(text_of(measured), end="")
    if update:
        TABLE.write_text(text_of({**read_table(), **measured}))
    table = read_table()
    wrong = [f"{name} {chip}: {values}, the table says {table.get((name, chip))}"
             for (name, chip), values in measured.items() if table.get((name, chip), [])[:len(values)] != values]
    wrong += [f"{name} {chip} spills" for (name, chip), values in measured.items() if values[1] != 0]
    if wrong:
        sys.exit("\n".join(wrong) + f"\nIf that is meant: {pathlib.Path(sys.argv[0]).name} .. --update")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("nvdisasm")
    parser.add_argument("--code", metavar="CHIP", default="")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if options.update and options.code:
        parser.error("--update writes all columns: --code leaves some out")
    main(options.directory, options.nvdisasm, options.update, options.code)
