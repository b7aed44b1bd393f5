"""OpenVINO: ScaledDotProductAttention; for decoding with its key/value cache in states, as its language models have it."""
import numpy as np
import openvino
from openvino import opset8, opset13
from openvino.op.util import Variable, VariableInfo

from data import Cannot, stored
from timing import Calls

TYPES = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}
CORE = openvino.Core()


def tensor(x):
    """Shares the array's memory, and may not keep the array alive."""
    if x.dtype == np.uint16:
        return openvino.Tensor(x, list(x.shape), openvino.Type.bf16)
    return openvino.Tensor(x, shared_memory=True)


def compiled(model, dtype, threads, **more):
    # CPUs without f16 arithmetic would take bf16 for it: less than the type holds.
    precision = dtype if dtype != "f16" or "FP16" in CORE.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
               "PERFORMANCE_HINT": "LATENCY", **more}
    try:
        return CORE.compile_model(model, "CPU", options)
    except RuntimeError as error:
        raise Cannot(str(error).splitlines()[0]) from error


def ints(*values):
    return opset13.constant(np.array(values, np.int64))


def repeated(x, data, head_dim):
    """Each head of keys or values once for every head of queries."""
    if data.group_size == 1:
        return x
    batch, num_heads, kv_heads = (data.case[name] for name in ("batch", "num_heads", "num_kv_heads"))
    shape = ints(batch, kv_heads, data.group_size, 1, head_dim)
    wide = opset13.broadcast(opset13.unsqueeze(x, ints(2)), shape, broadcast_spec="BIDIRECTIONAL")
    return opset13.reshape(wide, ints(0, num_heads, -1, head_dim), True)


def output_in_f32(x, data):
    if data.dtype == "f32":
        return opset13.add(x, opset13.constant(np.float32(0)))
    return opset13.convert(x, "f32")


def result_of(request):
    return np.array(request.get_output_tensor(0).data, dtype=np.float32)


def sdpa(data, threads):
    arrays = [data.q, data.k[0], data.v[0]]
    parameters = [opset13.parameter(x.shape, TYPES[data.dtype]) for x in arrays]
    q, k, v = parameters
    keys = (repeated(k, data, data.case["head_dim"]), repeated(v, data, data.case["head_dim_v"]))
    data.refuse("scaled_dot_product_attention", "softcap", "dropout_p", "temperature_growth")
    if data.mask is None:
        out = opset13.scaled_dot_product_attention(q, *keys, causal=data.causal)
    else:
        arrays.append(data.mask if data.mask.dtype == bool else stored(data.mask, data.dtype))
        kind = openvino.Type.boolean if data.mask.dtype == bool else TYPES[data.dtype]
        parameters.append(opset13.parameter(data.mask.shape, kind))
        out = opset13.scaled_dot_product_attention(q, *keys, parameters[-1], causal=False)
    model = compiled(openvino.Model([output_in_f32(out, data)], parameters, "attention"), data.dtype, threads)
    request = model.create_infer_request()
    for i, x in enumerate(arrays):
        request.set_input_tensor(i, tensor(x))
    request.infer()
    data.check(result_of(request))
    return Calls([request.infer], keep=arrays)


def cached(new, name, dtype, beams):
    """A state with `new` tokens after those that it holds, [batch, kv_heads, -, head_dim]; and what stores it."""
    batch, kv_heads, _, head_dim = (dim.get_length() if dim.is_static else -1 for dim in new.get_partial_shape())
    info = VariableInfo()
    info.data_shape, info.data_type = openvino.PartialShape([batch, kv_heads, -1, head_dim]), TYPES[dtype]
    info.variable_id = name
    state = Variable(info)
    zero = opset13.convert(opset13.constant(np.zeros(1, np.float32)), dtype)
    held = opset13.read_value(opset13.broadcast(zero, ints(batch, kv_heads, 0, head_dim)), state)
    all_tokens = opset13.concat([opset8.gather(held, beams, opset13.constant(np.array(0, np.int64))), new], 2)
    return all_tokens, opset13.assign(all_tokens, state)


class Sequence:
    """A request with a copy of k and v in its states. Every call adds a token."""

    def __init__(self, model, data, copy):
        self._k, self._v = data.k[copy], data.v[copy]
        self._most_calls = data.case["kv_len"] // 100
        self._calls = None  # since the states held all tokens but the last; None: they are empty
        self.request = model.create_infer_request()
        self._inputs = [data.q, None, None, np.arange(data.case["batch"], dtype=np.int32)]

    def _feed(self, token):
        """The token that calls add."""
        self._inputs[1:3] = (np.ascontiguousarray(x[:, :, token, None]) for x in (self._k, self._v))
        for i, x in enumerate(self._inputs):
            self.request.set_input_tensor(i, tensor(x))

    def rewind(self):
        """Once the sequence has grown by 1 %."""
        if self._calls is not None and self._calls <= self._most_calls:
            return
        for state in self.request.query_state():
            past = self._k if state.name == "k" else self._v
            state.state = tensor(np.ascontiguousarray(past[:, :, :-2]))
        self._feed(-2)
        self.request.infer()  # moves the states to where they can grow
        self._feed(-1)
        self._calls = 0

    def call(self):
        self._calls += 1
        self.request.infer()


def decode(data, threads, cache_type=None):
    """`cache_type`: of the states, such as u8; data's otherwise."""
    case, kind = data.case, TYPES[data.dtype]
    beams = opset13.parameter([case["batch"]], openvino.Type.i32)
    q = opset13.parameter([case["batch"], case["num_heads"], -1, case["head_dim"]], kind)
    new_k = opset13.parameter([case["batch"], case["num_kv_heads"], -1, case["head_dim"]], kind)
    new_v = opset13.parameter([case["batch"], case["num_kv_heads"], -1, case["head_dim_v"]], kind)
    k, store_k = cached(new_k, "k", data.dtype, beams)
    v, store_v = cached(new_v, "v", data.dtype, beams)
    keys = (repeated(k, data, case["head_dim"]), repeated(v, data, case["head_dim_v"]))
    out = output_in_f32(opset13.scaled_dot_product_attention(q, *keys, causal=False), data)
    graph = openvino.Model([out.output(0)], [store_k, store_v], [q, new_k, new_v, beams], "decode")
    model = compiled(graph, data.dtype, threads, KV_CACHE_PRECISION=cache_type or data.dtype)
    sequences = [Sequence(model, data, copy) for copy in range(len(data.k))]

    def rewind():
        for sequence in sequences:
            sequence.rewind()

    rewind()
    sequences[0].call()
    data.check(result_of(sequences[0].request))
    return Calls([sequence.call for sequence in sequences], before_round=rewind)


def linear(data, threads):
    x = opset13.parameter(data.x.shape, TYPES[data.dtype])
    weight, bias = (openvino.op.Constant(tensor(part)) for part in (data.weight, data.bias))
    out = output_in_f32(opset13.add(opset13.matmul(x, weight, False, True), bias), data)
    model = compiled(openvino.Model([out], [x], "linear"), data.dtype, threads)
    request = model.create_infer_request()
    request.set_input_tensor(0, tensor(data.x))
    request.infer()
    data.check(result_of(request))
    return Calls([request.infer], keep=[data])
