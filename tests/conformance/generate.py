"""Writes ONNX's own test cases of Attention and RotaryEmbedding as files that heed_conformance reads.

usage: generate.py OUT

OUT/attention/NAME.safetensors and OUT/rotary/NAME.safetensors hold the arrays inputs/* and outputs/*, named as in the
operator's schema, and as JSON in __metadata__.onnx opset, attributes and the tolerances of ONNX's runner. Cases whose names
end in _expanded are the same data for a graph of smaller operators, and left out."""

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
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "int32": "I32",
         "int64": "I64"}


def named(prefix: str, formal: list, names: list[str], arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays come for the names that are not empty, which are at the places of the formal parameters."""
    present = [f"{prefix}/{parameter.name}" for parameter, name in zip(formal, names) if name]
    return dict(zip(present, arrays, strict=True))


def write_tensors(path: Path, metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
    header, end = {"__metadata__": metadata}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values()))


def write_case(path: Path, case: onnx.backend.test.case.test_case.TestCase) -> None:
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    opset = case.model.opset_import[0].version
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    description = {
        "opset": opset,
        "rtol": case.rtol,
        "atol": case.atol,
        "attributes": {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, {"onnx": json.dumps(description)},
                  {**named("inputs", schema.inputs, node.input, inputs),
                   **named("outputs", schema.outputs, node.output, outputs)})


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
            write_case(out / FOLDERS[nodes[0].op_type] / f"{case.name}.safetensors", case)
    for folder in FOLDERS.values():
        print(f"{folder}: {len(list((out / folder).iterdir()))} cases")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
