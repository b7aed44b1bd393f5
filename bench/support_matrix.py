"""The default table's kernels as a table of Markdown: support_matrix.py TABLE [--check PAGE | --update PAGE].

TABLE has their names, those of all instruction sets: heed_kernels.dir/table.txt of a build. Kernels that differ in one axis only share a
line. In the page the table is between the lines BEGIN and END.
"""

import argparse
import pathlib
import re
import sys

BEGIN, END = "<!-- ./dev matrix writes this table -->\n\n", "\n<!-- end of the table -->\n"
ANY = 1 << 30
ISAS = {"x86_64": "x86_64 (SSE4.1)", "avx2": "AVX2", "avx512": "AVX-512", "avx512bf16": "AVX-512 BF16", "amx": "AMX",
        "sm75": "sm_75", "sm80": "sm_80", "sm90": "sm_90 alone"}
# For each axis its head in the table and the text of each value, in order; head dims and features have texts of their own.
AXES = (
    ("phase", {"prefill": "prefill", "decode": "decode"}),
    ("types", {name: name for name in ("f32", "f16", "bf16", "f32 / int8", "f16 / int8", "bf16 / int8", "f16 / f32", "bf16 / f32")}),
    ("head dims", None),
    ("features", None),
    ("keys", {"contiguous": "contiguous, packed", "paged": "every storage"}),
    ("instruction sets", ISAS),
)


NAME = re.compile(r"attention_(prefill|decode)_(f32|f16|bf16)(?:_kv(i8|f32))?_d([0-9x]+|any)_(?:([a-z_]+)_)?(contiguous|paged)_(\w+?)(?:_wide|_whole)?")


def kernels(table):
    """The values on the axes of each kernel of attention. Kernels that differ in their blocks of work are equal."""
    for name in table.read_text().splitlines():
        if match := NAME.fullmatch(name):
            phase, dtype, keys, dims, features, storage, isa = match.groups()
            if keys == "f32":  # copies of heads
                storage = "paged"
            dims = [ANY if dim == "any" else int(dim) for dim in dims.split("x")]
            yield phase, f"{dtype} / {keys.replace('i8', 'int8')}" if keys else dtype, (dims[0], dims[-1]), features or "-", storage, isa


def order(axis, value):
    texts = AXES[axis][1]
    return list(texts).index(value) if texts else value


def merged(kernels, axis):
    """Kernels that are equal except for `axis` as one, with all that they have there, in order."""
    groups = {}
    for kernel in kernels:
        groups.setdefault(kernel[:axis] + kernel[axis + 1:], []).append(kernel[axis])
    return [rest[:axis] + (tuple(sorted(values, key=lambda value: order(axis, value))),) + rest[axis:]
            for rest, values in groups.items()]


def text(axis, value):
    if AXES[axis][0] == "head dims":
        d, dv = ("any" if dim == ANY else str(dim) for dim in value)
        return d if d == dv else f"{d}/{dv}"
    if AXES[axis][0] == "features":
        return "plain" if value == "-" else value.replace("_", " ")
    return AXES[axis][1][value]


def table(kernels):
    """CPUs first, then by phase, types, head dims."""
    for axis in (2, 1, 3, 4, 5, 0):
        kernels = merged(kernels, axis)
    kernels.sort(key=lambda kernel: (kernel[5][0].startswith("sm"),
                               *([order(axis, value) for value in kernel[axis]] for axis in (0, 1, 2, 3))))
    lines = [[name for name, _ in AXES], ["---"] * len(AXES)]
    lines += [[("; " if axis in (3, 4) else ", ").join(text(axis, value) for value in kernel[axis]) for axis in range(len(AXES))]
              for kernel in kernels]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path, metavar="PAGE")
    parser.add_argument("--update", type=pathlib.Path, metavar="PAGE")
    options = parser.parse_args()
    found, page = table(list(dict.fromkeys(kernels(options.table)))), options.check or options.update
    if page is None:
        print(found, end="")
        return
    before, _, rest = page.read_text().partition(BEGIN)
    there, _, after = rest.partition(END)
    if options.update:
        page.write_text(before + BEGIN + found + END + after)
    elif there != found:
        sys.exit(f"the table of kernels in {page.name} is not that of this build: ./dev matrix writes it\n{found}")


if __name__ == "__main__":
    main()
