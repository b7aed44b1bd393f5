"""What a wheel holds, from an installation: the package, one libheed.so, the command. test_installed.py CMAKE BUILD."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD = sys.argv[1:3]
USE = """
import heed, heed._command, json, numpy as np
q = np.ones((1, 3, 2, 64), np.float32)
assert (heed.attention(q, q, q) == 1).all()
print(json.dumps([kernel["name"] for kernel in heed.kernels()]))
"""


class Installed(unittest.TestCase):
    def test_package_and_command(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([CMAKE, "--install", BUILD, "--component", "python", "--prefix", folder], check=True, capture_output=True)
            package = pathlib.Path(folder, "heed")
            self.assertEqual(len([path for path in package.glob("libheed.so*") if not path.is_symlink()]), 1)

            def run(*arguments):
                return subprocess.run(arguments, check=True, capture_output=True, text=True, env={"PYTHONPATH": folder}, cwd=folder).stdout

            names = json.loads(run(sys.executable, "-c", USE))
            listed = json.loads(run(package / "bin" / "heed", "kernels", "--json"))
            self.assertLessEqual(set(names), {kernel["name"] for kernel in listed["kernels"]})
            script = "import sys; from heed._command import main; sys.argv = ['heed', 'kernels', '--json']; main()"
            self.assertEqual(json.loads(run(sys.executable, "-c", script)), listed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
