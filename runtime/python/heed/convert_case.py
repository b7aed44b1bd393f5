"""An old case folder of `heed run`, problem.json and .npy files, as the one file that a case is now.

    python -m heed.convert_case FOLDER FILE

FILE is best NAME.safetensors: `heed run` writes NAME.out.safetensors."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

from ._attention import ARRAYS
from ._case_file import TYPES, write

NAMES = {"q", "k", "v", *ARRAYS} - {"device_status", "workspace"}


def convert(folder: pathlib.Path, file: pathlib.Path) -> None:
    """Raises OSError or ValueError for files that cannot be read or written."""
    problem = (folder / "problem.json").read_text(encoding="utf-8")
    # There 16-bit patterns were bf16, and could be f16.
    types = {**TYPES, "int64": "I64", "uint16": "F16" if json.loads(problem).get("dtype") == "f16" else "BF16"}
    arrays = {}
    for name in sorted(NAMES):
        path = folder / f"{name}.npy"
        if path.exists():
            array = np.load(path)
            if array.dtype.name not in types:
                raise ValueError(f"{path} holds {array.dtype}; it must hold one of {', '.join(types)}")
            arrays[name] = types[array.dtype.name], array
    write(file, problem, arrays)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    except (OSError, ValueError) as error:
        sys.exit(f"heed.convert_case: {error}")
