"""libheed.so through ctypes: the structs of heed.h, types.h and ops.h as the headers declare them, plans, execute, gradients."""
import ctypes
import math
import pathlib
import sys
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "runtime"))
import headers

CUDA = headers.VALUES["HEED_CUDA"]
DTYPES = {name: headers.VALUES[f"HEED_{name.upper()}"] for name in ("f32", "f16", "bf16")}
I8, U8 = headers.VALUES["HEED_I8"], headers.VALUES["HEED_U8"]
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
VARLEN, PAGED = headers.VALUES["HEED_Q_VARLEN"], headers.VALUES["HEED_KV_PAGED"]  # HEED_KV_VARLEN is HEED_Q_VARLEN
TYPES = {"bool": c_bool, "float": c_float, "int32_t": c_int32, "int64_t": c_int64, "uint32_t": c_uint32, "uint64_t": c_uint64,
         "size_t": c_size_t, **dict.fromkeys(headers.ENUMS, c_int32)}


def structure(name):
    """A class with the fields of the struct; later structs may have fields of it."""
    def type_of(field):
        if field.is_pointer:
            return c_char_p if field.type == "const char" else c_void_p
        kind = TYPES[field.type]
        return kind * (headers.VALUES.get(field.count) or int(field.count)) if field.count else kind

    TYPES[name] = type(name, (Structure,), {"_fields_": [(field.name, type_of(field)) for field in headers.struct(name)]})
    return TYPES[name]


Layout = structure("heed_layout")
Tensor = structure("heed_tensor")
Problem = structure("heed_problem")
Args = structure("heed_args")
Gradients = structure("heed_gradients")


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


class Call:
    """Heed on a problem: a plan, its arguments, and the memory on the device that goes with them."""

    def __init__(self, heed, problem, driver, stream):
        self.heed, self._driver, self._owned, self.plan = heed, driver, [], c_void_p()
        problem.cuda_capability = problem.cuda_capability or driver.capability
        heed.check(heed.heed_plan_create(ctypes.byref(problem), ctypes.byref(self.plan)))
        self.kernel = heed.heed_plan_kernel_name(self.plan).decode()
        self.args = heed.args()
        self.args.stream = stream
        self.take_workspace(heed.heed_plan_workspace_bytes(self.plan))

    def allocate(self, size):
        self._owned.append(self._driver.allocate(size))
        return self._owned[-1]

    def take_workspace(self, size):
        self.args.workspace, self.args.workspace_bytes = self.allocate(size), size

    def execute(self):
        self.heed.check(self.heed.heed_execute(self.plan, ctypes.byref(self.args)))

    __call__ = execute

    def destroy(self):
        for address in self._owned:
            self._driver.free(address)
        self.heed.heed_plan_destroy(self.plan)
