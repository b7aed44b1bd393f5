"""The command heed of a wheel: the program that is in the package."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "heed"
    if not program.exists():
        sys.exit("this build of the package heed is without the command: HEED_BUILD_COMMAND was OFF")
    os.execv(program, [str(program), *sys.argv[1:]])
