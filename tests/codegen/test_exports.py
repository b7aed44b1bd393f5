"""The shared library exports the API and nothing else."""
import subprocess
import sys
import unittest

LIBRARY = sys.argv.pop(1)


class Exports(unittest.TestCase):
    def test_only_the_api(self):
        output = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
        names = [line.split()[-1] for line in output.splitlines()]
        self.assertIn("heed_execute", names)
        self.assertEqual([n for n in names if not n.startswith("heed_")], [])
        self.assertNotIn("heed_kernel_table", names)


unittest.main()
