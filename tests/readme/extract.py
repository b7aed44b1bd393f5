"""Writes the C and C++ examples of README.md into a folder: extract.py README FOLDER NAME...

An example is a fenced block whose first line names its language and its file: ```c attention.c. It is an error when the names
are not those of the command line.
"""

import pathlib
import re
import sys

readme, folder, *names = sys.argv[1:]
text = pathlib.Path(readme).read_text()
examples = re.findall(r"^```(?:c|cpp)(?: (\S+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
found = [name for name, _ in examples]
if sorted(found) != sorted(names):
    sys.exit(f"{readme} has the examples {found}; they must be those of {pathlib.Path(__file__).parent}/CMakeLists.txt, {names}")
for name, code in examples:
    (pathlib.Path(folder) / name).write_text(code)
