"""ONNX Runtime: com.microsoft's GroupQueryAttention, ONNX's Attention of opset 23, and Gemm."""
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from data import Cannot, stored
from timing import Calls

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
LARGEST_SCORES = 2 << 30  # bytes of f32; several such matrices are alive at once


class Model:
    """One node, its inputs and outputs on the CPU in numpy's memory; its constants are the model's."""

    def __init__(self, node, dtype, threads, inputs, outputs, constants=None):
        types = {np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL}

        def declare(arrays):
            return [helper.make_tensor_value_info(name, types.get(x.dtype, TYPES[dtype]), x.shape) for name, x in arrays.items()]

        held = [helper.make_tensor(name, types.get(x.dtype, TYPES[dtype]), x.shape, x.tobytes(), raw=True)
                for name, x in (constants or {}).items()]
        graph = helper.make_graph([node], "peer", declare(inputs), declare(outputs), held)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)
        try:
            self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common type
            raise Cannot(str(error).splitlines()[0]) from error
        self._inputs, self._outputs = inputs, outputs

    def call(self, inputs, outputs=None):
        """A function that runs the model with these arrays in place of some of its own; they are the caller's to keep."""
        binding = self._session.io_binding()
        for name, x in {**self._inputs, **inputs}.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
        for name, x in {**self._outputs, **(outputs or {})}.items():
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
        return lambda: self._session.run_with_iobinding(binding)


def heads_inside(x):
    """[batch, positions, heads * head_dim]"""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)


def refuse_large_scores(op, case):
    """Ops that keep the scores of all pairs would take most of a machine's memory."""
    scores = 4 * case["batch"] * case["num_heads"] * case["q_len"] * case["kv_len"]
    if scores > LARGEST_SCORES:
        raise Cannot(f"{op} keeps all scores: {scores >> 20} MiB, several times")


def gqa(data, threads):
    case = data.case
    data.refuse("GroupQueryAttention", "has_alibi", "dropout_p", "temperature_growth")
    if data.dtype == "f16":  # f32 goes block by block
        refuse_large_scores("GroupQueryAttention in f16", case)
    causal_as_op = case["causal"] or case["q_len"] == 1
    if not causal_as_op or case["head_dim"] != case["head_dim_v"] or case["mask"] != "none":
        raise Cannot("GroupQueryAttention is causal, has one head dim and no mask")
    batch, q_len, kv_len = case["batch"], case["q_len"], case["kv_len"]
    past_len = kv_len - q_len
    if past_len and q_len > 1 and batch > 1:
        raise Cannot("GroupQueryAttention takes several queries after a past in batches of 1 only")
    kv_shape = (batch, case["num_kv_heads"], kv_len, case["head_dim"])
    window = {"local_window_size": case["window_left"] + 1} if case["window_left"] >= 0 else {}
    node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "last", "total"],
                            ["out", "present_k", "present_v"], domain="com.microsoft", num_heads=case["num_heads"],
                            kv_num_heads=case["num_kv_heads"], softcap=float(case["softcap"]), **window)
    # With a past, past and present are one buffer: the op puts the new tokens in place.
    past_k, past_v = (x[0] if past_len else x[0][:, :, :0] for x in (data.k, data.v))
    inputs = {"q": heads_inside(data.q), "k": heads_inside(data.k[0][:, :, past_len:]),
              "v": heads_inside(data.v[0][:, :, past_len:]), "past_k": past_k, "past_v": past_v,
              "last": np.full([batch], kv_len - 1, np.int32), "total": np.array(kv_len, np.int32)}
    dtype = data.q.dtype
    outputs = {"out": np.zeros((batch, q_len, case["num_heads"] * case["head_dim"]), dtype),
               "present_k": np.zeros(kv_shape, dtype), "present_v": np.zeros(kv_shape, dtype)}
    model = Model(node, data.dtype, threads, inputs, outputs)
    if past_len:
        calls = [model.call({"past_k": k, "past_v": v}, {"present_k": k, "present_v": v}) for k, v in zip(data.k, data.v)]
    else:
        calls = [model.call({})]
    calls[0]()
    out = outputs["out"].reshape(batch, q_len, case["num_heads"], case["head_dim"])
    data.check(out.transpose(0, 2, 1, 3).astype(np.float32))
    return Calls(calls)


def attention(data, threads):
    case = data.case
    data.refuse("Attention", "dropout_p", "temperature_growth")
    refuse_large_scores("Attention", case)
    inputs = {"q": data.q, "k": data.k[0], "v": data.v[0]}
    if data.mask is not None:
        inputs["mask"] = data.mask if data.mask.dtype == bool else stored(data.mask, data.dtype)
    node = helper.make_node("Attention", list(inputs), ["out"], is_causal=int(data.causal),
                            softcap=float(case["softcap"]))
    outputs = {"out": np.zeros(data.out_shape, data.q.dtype)}
    model = Model(node, data.dtype, threads, inputs, outputs)
    calls = [model.call({"k": k, "v": v}) for k, v in zip(data.k, data.v)]
    calls[0]()
    data.check(outputs["out"].astype(np.float32))
    return Calls(calls)


def linear(data, threads):
    node = helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)
    outputs = {"y": np.zeros((len(data.x), len(data.weight)), data.x.dtype)}
    model = Model(node, data.dtype, threads, {"x": data.x}, outputs, {"weight": data.weight, "bias": data.bias})
    call = model.call({})
    call()
    data.check(outputs["y"].astype(np.float32))
    return Calls([call])
