"""What ptxas and the machine code say of the CUDA rows, against the table beside this file.

    cuda_limits.py DIR NVDISASM [--update]

DIR holds NAME.limits and NAME.sm_XX.cubin of each row. Prints one line per row and capability: registers, bytes spilled,
shared memory of a block, instructions of the innermost loop with most HMMA (its cold branches included), the HMMA in it,
instructions of the kernel. Exit status 1 when a line differs from the table, or a row spills. Rows that were not built are
left out; --update writes those that were."""
import concurrent.futures
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "bench"))

from sass import hottest_loop, instructions

TABLE = pathlib.Path(__file__).with_name("cuda_limits.txt")
COLUMNS = ["registers", "spill_bytes", "shared_bytes", "loop", "hmma", "instructions"]


def measure_binary(nvdisasm, path, line):
    capability, *fields = line.split()
    values = {name: int(value) for name, value in zip(fields[::2], fields[1::2])}
    cubin = path.with_suffix(f".{capability}.cubin")
    sass = subprocess.run([nvdisasm, cubin], check=True, capture_output=True, text=True).stdout
    loop = hottest_loop(sass, "HMMA")
    values["loop"], values["hmma"] = len(loop), sum(opcode == "HMMA" for opcode, _ in loop)
    values["instructions"] = len(instructions(sass))
    return (path.stem, capability), [values[name] for name in COLUMNS]


def measure(directory, nvdisasm):
    with concurrent.futures.ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(measure_binary, nvdisasm, path, line)
            for path in sorted(pathlib.Path(directory).glob("*.limits"))
            for line in path.read_text().splitlines()
        ]
        return dict(job.result() for job in jobs)


def read_table():
    rows = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        if not line.startswith("#"):
            name, capability, *values = line.split()
            rows[name, capability] = [int(value) for value in values]
    return rows


def text_of(rows):
    width = max(len(name) for name, _ in rows)
    lines = [f"# {'row':<{width - 2}} {'chip':<7}" + "".join(f"{name:>14}" for name in COLUMNS)]
    for (name, capability), values in sorted(rows.items()):
        lines.append(f"{name:<{width}} {capability:<7}" + "".join(f"{value:>14}" for value in values))
    return "\n".join(lines) + "\n"


def main(directory, nvdisasm, update):
    measured = measure(directory, nvdisasm)
    if not measured:
        sys.exit(f"no CUDA row was built in {directory}")
    print(text_of(measured), end="")
    if update:
        TABLE.write_text(text_of({**read_table(), **measured}))
    table = read_table()
    wrong = [f"{name} {chip}: {values}, the table says {table.get((name, chip))}"
             for (name, chip), values in measured.items() if table.get((name, chip)) != values]
    wrong += [f"{name} {chip} spills" for (name, chip), values in measured.items() if values[1] != 0]
    if wrong:
        sys.exit("\n".join(wrong) + f"\nIf that is meant: {pathlib.Path(sys.argv[0]).name} .. --update")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--update" in sys.argv[3:])
