"""The arrows between folders: Halide.h <- generators <- schedules, and a runtime that knows neither, nor its device."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
FORBIDDEN = {
    "generators": r'"(heed/(?!user_score)|kernel\.h|plan\.h)',
    "schedules": r'"(heed/(?!user_score)|kernel\.h|plan\.h)',
    "runtime": r'[<"](Halide\.h|attention_|schedules\.h|machine\.h")',
}


class Includes(unittest.TestCase):
    def test_arrows(self):
        for folder, pattern in FORBIDDEN.items():
            files = [f for f in (ROOT / folder).rglob("*") if f.suffix in (".h", ".hpp", ".cpp")]
            self.assertGreater(len(files), 3, folder)
            for file in files:
                for line in file.read_text().splitlines():
                    if folder == "generators" and file.name == "main.cpp":
                        continue  # the driver is where what meets how
                    if line.startswith("#include"):
                        self.assertIsNone(re.search(pattern, line), f"{file}: {line}")

    def test_only_the_bridge_knows_halide(self):
        users = [f.name for f in (ROOT / "runtime").rglob("*.cpp") if re.search(r"HalideRuntime|halide_arguments\.h", f.read_text())]
        self.assertEqual(sorted(users), ["halide_arguments.cpp", "halide_bridge.cpp", "halide_cuda.cpp", "launches.cpp"])

    def test_devices_are_told_apart_once(self):
        """Elsewhere calls go through Backend. The others check an enum's values, or what a kernel of the table runs on."""
        files = [f.relative_to(ROOT / "runtime") for f in (ROOT / "runtime").rglob("*") if f.suffix in (".h", ".cpp")]
        told = r"\b(on_cuda|is_cuda)\b|[!=]= HEED_C(PU|UDA)\b|\bHEED_C(PU|UDA) [!=]="
        tests = [str(f) for f in files if str(f.parent) not in ("cpu", "cuda", "cli", "python", "reference")
                 and re.search(told, (ROOT / "runtime" / f).read_text())]
        self.assertEqual(sorted(tests), ["backend.cpp", "kernel.h", "kernel_registry.cpp", "ops/op_run.cpp", "validate.cpp"])


unittest.main()
