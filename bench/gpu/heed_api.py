"""libheed.so through ctypes: the structs of heed.h, types.h and ops.h, plans, execute, gradients."""
import ctypes
import math
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

CUDA = 1
DTYPES = {"f32": 0, "f16": 1, "bf16": 2}
I8, U8 = 3, 4
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
VARLEN, PAGED = 1, 2  # HEED_Q_VARLEN, HEED_KV_VARLEN; HEED_KV_PAGED


class Layout(Structure):
    _fields_ = [("stride", c_int64 * 4)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("size", c_int64), ("dtype", c_int32)]


class Problem(Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("device", c_int32), ("dtype", c_int32), ("kv_dtype", c_int32),
        ("batch", c_int32), ("num_heads", c_int32), ("num_kv_heads", c_int32), ("head_dim", c_int32),
        ("head_dim_v", c_int32), ("max_q_len", c_int32), ("max_kv_len", c_int32), ("total_q", c_int32),
        ("total_kv", c_int32), ("num_pages", c_int32), ("page_size", c_int32), ("max_pages_per_seq", c_int32),
        ("position", c_int32), ("causal", c_bool), ("window_left", c_int32), ("window_right", c_int32),
        ("scale", c_float), ("softcap", c_float), ("q_storage", c_int32), ("kv_storage", c_int32),
        ("has_mask", c_bool), ("mask_true_hides", c_bool), ("has_bias", c_bool), ("has_sink", c_bool),
        ("has_alibi", c_bool), ("alibi_symmetric", c_bool), ("has_kv_lens", c_bool), ("want_lse", c_bool),
        ("batch_invariant", c_bool), ("metadata_on_device", c_bool),
        ("dropout_p", c_float), ("num_splits", c_int32), ("max_threads", c_int32), ("bias_dtype", c_int32),
        ("q_layout", Layout), ("k_layout", Layout), ("v_layout", Layout), ("out_layout", Layout),
        ("lse_layout", Layout), ("mask_shape", c_int32 * 4), ("bias_shape", c_int32 * 4), ("mask_layout", Layout),
        ("bias_layout", Layout), ("cuda_capability", c_int32), ("score_mod", c_char_p),
    ]


class Args(Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("num_threads", c_int32), ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("out", Tensor), ("lse", Tensor), ("mask", Tensor), ("bias", Tensor), ("k_scale", Tensor), ("v_scale", Tensor),
        ("cu_seqlens_q", c_void_p), ("cu_seqlens_kv", c_void_p), ("kv_lens", c_void_p), ("q_offsets", c_void_p),
        ("page_table", c_void_p), ("sink", c_void_p), ("alibi_slopes", c_void_p), ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64), ("score_buffers", Tensor * 4), ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("pool", c_void_p),
        ("stream", c_void_p), ("device_status", c_void_p),
    ]


class Gradients(Structure):
    _fields_ = [("struct_size", c_uint32), ("dout", Tensor), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor),
                ("dbias", Tensor), ("dsink", Tensor)]


class HeedError(Exception):
    """A call of the library failed."""


class Heed:
    """The library. Checks on loading that the structs above are as large as its own."""

    def __init__(self, path):
        self._library = ctypes.CDLL(str(path))
        for name, arguments, result in (
                ("heed_problem_init", (c_void_p,), c_int32),
                ("heed_args_init", (c_void_p,), c_int32),
                ("heed_plan_create", (POINTER(Problem), POINTER(c_void_p)), c_int32),
                ("heed_plan_destroy", (c_void_p,), None),
                ("heed_plan_workspace_bytes", (c_void_p,), c_size_t),
                ("heed_plan_kernel_name", (c_void_p,), c_char_p),
                ("heed_execute", (c_void_p, POINTER(Args)), c_int32),
                ("heed_attention_backward_workspace_bytes", (c_void_p,), c_size_t),
                ("heed_attention_backward", (c_void_p, POINTER(Args), POINTER(Gradients)), c_int32),
                ("heed_last_error", (), c_char_p),
                ("heed_status_name", (c_int32,), c_char_p),
                ("heed_version", (), c_char_p)):
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)
        self.version = self.heed_version().decode()
        self.problem()
        self.args()

    def check(self, status):
        if status != 0:
            raise HeedError(f"{self.heed_status_name(status).decode()}: {self.heed_last_error().decode()}")

    def _init(self, kind, init):
        room = ctypes.create_string_buffer(4096)  # more than either struct: init writes the library's own size
        self.check(init(room))
        result = kind.from_buffer_copy(room)
        if result.struct_size != ctypes.sizeof(kind):
            raise HeedError(f"{kind.__name__} has {ctypes.sizeof(kind)} bytes here and {result.struct_size} in the "
                            f"library; heed_api.py is of another version")
        return result

    def problem(self):
        result = self._init(Problem, self.heed_problem_init)
        if not math.isnan(result.scale) or (result.window_left, result.window_right) != (-1, -1):
            raise HeedError("heed_problem_init's defaults are not where heed_api.py looks for them")
        result.device = CUDA
        return result

    def args(self):
        return self._init(Args, self.heed_args_init)


class Plan:
    """A plan, and execute on given arguments."""

    def __init__(self, heed, problem):
        self._heed, self._plan = heed, c_void_p()
        heed.check(heed.heed_plan_create(ctypes.byref(problem), ctypes.byref(self._plan)))
        self.kernel = heed.heed_plan_kernel_name(self._plan).decode()
        self.workspace_bytes = heed.heed_plan_workspace_bytes(self._plan)

    def execute(self, args):
        status = self._heed.heed_execute(self._plan, ctypes.byref(args))
        if status != 0:
            self._heed.check(status)

    @property
    def backward_workspace_bytes(self):
        return self._heed.heed_attention_backward_workspace_bytes(self._plan)

    def backward(self, args, gradients):
        self._heed.check(self._heed.heed_attention_backward(self._plan, ctypes.byref(args), ctypes.byref(gradients)))

    def destroy(self):
        self._heed.heed_plan_destroy(self._plan)
        self._plan = c_void_p()
