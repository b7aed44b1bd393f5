"""The arrows between folders: Halide.h <- generators <- schedules, and a runtime that knows neither."""
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


unittest.main()
