"""Writes ONNX's own test cases of Attention and RotaryEmbedding as folders that heed_conformance reads.

usage: generate.py OUT

OUT/attention/NAME and OUT/rotary/NAME hold case.json (opset, attributes, tolerances of ONNX's runner), inputs/*.npy and
outputs/*.npy, named as in the operator's schema. bfloat16 is written as its bits in uint16. Cases whose names end in
_expanded are the same data for a graph of smaller operators, and left out."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

# The meaning of Attention was corrected in place: the data of older releases contradicts it.
ONNX_RELEASE = "1.23."
FOLDERS = {"Attention": "attention", "RotaryEmbedding": "rotary"}


def write_arrays(folder: Path, formal: list, names: list[str], arrays: list[np.ndarray]) -> None:
    """Arrays come for the names that are not empty, which stand at the places of the formal parameters."""
    folder.mkdir()
    present = [parameter.name for parameter, name in zip(formal, names) if name]
    for name, array in zip(present, arrays, strict=True):
        plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        np.save(folder / f"{name}.npy", np.ascontiguousarray(plain), allow_pickle=False)


def write_case(folder: Path, case: onnx.backend.test.case.test_case.TestCase) -> None:
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    opset = case.model.opset_import[0].version
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    folder.mkdir(parents=True)
    write_arrays(folder / "inputs", schema.inputs, node.input, inputs)
    write_arrays(folder / "outputs", schema.outputs, node.output, outputs)
    description = {
        "opset": opset,
        "rtol": case.rtol,
        "atol": case.atol,
        "attributes": {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute},
    }
    (folder / "case.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def main(out: Path) -> None:
    if not onnx.__version__.startswith(ONNX_RELEASE):
        sys.exit(f"onnx is {onnx.__version__}; it must be {ONNX_RELEASE}x, whose cases have the operator's meaning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases overflow on purpose
        cases = collect_testcases(None)
    for folder in FOLDERS.values():
        shutil.rmtree(out / folder, ignore_errors=True)
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in FOLDERS and "_expanded" not in case.name:
            write_case(out / FOLDERS[nodes[0].op_type] / case.name, case)
    for folder in FOLDERS.values():
        print(f"{folder}: {len(list((out / folder).iterdir()))} cases")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
