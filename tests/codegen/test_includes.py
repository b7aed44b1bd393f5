"""The arrows between folders: who includes whom. Generators and schedules share nothing with the runtime but the contract, and
no folder but tests names tests."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
CONTRACT = {"generators/contract", "generators/include"}
API = CONTRACT | {"runtime/include"}
ALGORITHM = CONTRACT | {"generators/common", "generators/lowering", "generators/attention", "generators/ops", "generators/cuda"}

# What the files of a folder may include in addition to those of the folder itself. A folder within one that has a line belongs to that
# line, unless it has its own.
ARROWS = {
    "generators/contract": set(),
    "generators/include": set(),
    "generators/common": CONTRACT,
    "generators/lowering": CONTRACT | {"generators/common"},
    "generators/lowering/cuda": CONTRACT | {"generators/common", "generators/cuda"},
    "generators/attention": ALGORITHM - {"generators/attention", "generators/ops", "generators/cuda"},
    "generators/ops": ALGORITHM - {"generators/ops", "generators/cuda"},
    "generators/cuda": ALGORITHM - {"generators/cuda"},
    "schedules": ALGORITHM | {"generators/lowering/cuda"},
    "generators/table": CONTRACT | {"generators/common"},
    "generators/driver": ALGORITHM | {"schedules", "generators/table"},
    "runtime/include": set(),
    "runtime/files": set(),
    "runtime/names": set(),
    "runtime": API | {"runtime/names"},
    "runtime/cpu": API | {"runtime", "runtime/ops", "runtime/layer"},
    "runtime/cuda": API | {"runtime", "runtime/ops", "runtime/layer"},
    "runtime/ops": API | {"runtime"},
    "runtime/layer": API | {"runtime", "runtime/files", "runtime/ops"},
    "runtime/reference": API | {"runtime/files"},
    "runtime/cli": API | {"runtime/reference", "runtime/names"},
    "runtime/python": API,
    "bench": API | {"runtime/reference"},
    "docs/examples": API,
}
NAMES_OF_TESTS = re.compile(r"\btests/|\bheed_test_")
WITHOUT_TESTS = "generators", "schedules", "runtime", "bench", "cmake", "docs/examples"
SOURCES = ".h", ".hpp", ".c", ".cpp", ".inc"
TEXTS = (*SOURCES, ".cmake", ".in", ".py", ".sh", ".txt")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def files_in(folders, suffixes):
    return sorted({path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes})


def line_of(path):
    """The folder of ARROWS that a file belongs to."""
    return max((folder for folder in ARROWS if name_of(path).startswith(f"{folder}/")), key=len)


class Includes(unittest.TestCase):
    def test_arrows(self):
        files = files_in(ARROWS, SOURCES)
        self.assertGreater(len(files), 300)
        found, unrooted = set(), set()
        for file in files:
            for header in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M):
                # A public header includes its neighbours, since it is installed without this project.
                public = ROOT / "runtime" / "include" / header if header.startswith("heed/") else file.parent / header
                if public.is_file() and public.is_relative_to(ROOT / "runtime" / "include"):
                    target = public
                elif (ROOT / header).is_file():
                    target = ROOT / header
                else:
                    if not header.endswith((".inc", "Halide.h", "HalideRuntime.h", "heed/user_score.h")):
                        unrooted.add(f"{name_of(file)}: {header}")
                    continue
                line, used = line_of(file), line_of(target)
                if used != line and used not in ARROWS[line]:
                    found.add(f"{name_of(file)} -> {name_of(target)}")
        self.assertEqual(sorted(unrooted), [], 'paths from the project\'s root, or "heed/NAME"')
        self.assertEqual(sorted(found), [], "new arrows")

    def test_kernel_table(self):
        """runtime/kernel.h is installed with the API and the contract alone: users' kernel tables compile with it."""
        headers = re.findall(r'^#include "([^"]+)"', (ROOT / "runtime/kernel.h").read_text(), re.M)
        self.assertEqual([h for h in headers if not h.startswith(("heed/", "generators/contract/"))], [])

    def test_halide(self):
        """The runtime knows the interface that Halide compiles to, and that in few files."""
        files = files_in(["runtime"], SOURCES)
        self.assertEqual([name_of(f) for f in files if re.search(r'^#include [<"]Halide\.h', f.read_text(), re.M)], [])
        users = [f.name for f in files if f.suffix == ".cpp" and re.search(r"HalideRuntime|halide_arguments\.h", f.read_text())]
        self.assertEqual(sorted(users), ["halide_arguments.cpp", "halide_bridge.cpp", "halide_cuda.cpp", "launches.cpp"])

    def test_only_tests_name_tests(self):
        files = files_in(WITHOUT_TESTS, TEXTS)
        self.assertGreater(len(files), 300)
        naming = [name_of(file) for file in files if NAMES_OF_TESTS.search(file.read_text(errors="replace"))]
        self.assertEqual(naming, [])

    def test_devices_are_told_apart_once(self):
        """Elsewhere calls go through Backend. The others check an enum's values, or what a kernel of the table runs on."""
        files = [f.relative_to(ROOT / "runtime") for f in (ROOT / "runtime").rglob("*") if f.suffix in (".h", ".cpp")]
        told = r"\b(on_cuda|is_cuda)\b|[!=]= HEED_C(PU|UDA)\b|\bHEED_C(PU|UDA) [!=]="
        tests = [str(f) for f in files if str(f.parent) not in ("cpu", "cuda", "cli", "python", "reference")
                 and re.search(told, (ROOT / "runtime" / f).read_text())]
        self.assertEqual(sorted(tests), ["backend.cpp", "kernel.h", "ops/op_run.cpp", "validate.cpp"])


unittest.main()
