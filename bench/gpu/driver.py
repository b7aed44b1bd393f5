"""The CUDA driver (libcuda.so.1) through ctypes: the first device's primary context, memory, a stream, events."""
import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

SIGNATURES = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoD_v2": (c_uint64, c_uint64, c_size_t),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_void_p, c_void_p, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}


class NoDevice(Exception):
    """There is no driver, or it has no device."""


class DriverError(Exception):
    """A call of the driver failed."""


class Driver:
    """Loads and starts the driver; make_context() comes before everything that needs a context."""

    def __init__(self):
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDevice(f"no CUDA driver was found ({error})") from error
        self._functions = {}
        self.context = None
        code = self._function("cuInit")(0)
        if code != 0:
            raise NoDevice(f"the CUDA driver does not start: cuInit answers {self.error_name(code)}")
        if self._get("cuDeviceGetCount", c_int) == 0:
            raise NoDevice("the CUDA driver reports no device")
        self.device = self._get("cuDeviceGet", c_int, 0)

    def has(self, name):
        return hasattr(self._library, name)

    def _function(self, name):
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = getattr(self._library, name)
            function.argtypes, function.restype = SIGNATURES[name], c_int
        return function

    def call(self, name, *arguments):
        code = self._function(name)(*arguments)
        if code != 0:
            raise DriverError(f"{name}: {self.error_name(code)}")

    def _get(self, name, kind, *arguments):
        """The value that a call writes through its first argument."""
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def error_name(self, code):
        text = c_char_p()
        if self._function("cuGetErrorName")(code, ctypes.byref(text)) != 0 or not text.value:
            return f"error {code}"
        return text.value.decode()

    # ---- What the device is

    @property
    def version(self):
        number = self._get("cuDriverGetVersion", c_int)
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def name(self):
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    @property
    def emulated(self):
        """The emulated device of the tests."""
        return "emulated" in self.name

    @property
    def capability(self):
        """10 * major + minor."""
        return 10 * self.attribute(75) + self.attribute(76)

    def attribute(self, number):
        return self._get("cuDeviceGetAttribute", c_int, number, self.device)

    @property
    def memory_bytes(self):
        return self._get("cuDeviceTotalMem_v2", c_size_t, self.device) if self.has("cuDeviceTotalMem_v2") else None

    # ---- The context, its memory and streams

    def make_context(self):
        """The primary context, which PyTorch uses too, becomes current."""
        self.context = self._get("cuDevicePrimaryCtxRetain", c_void_p, self.device)
        self.call("cuCtxSetCurrent", self.context)

    def make_stream(self):
        return self._get("cuStreamCreate", c_void_p, 0)

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", stream)

    def allocate(self, size):
        return self._get("cuMemAlloc_v2", c_uint64, max(size, 1))

    def free(self, address):
        self.call("cuMemFree_v2", address)

    def upload(self, address, data):
        self.call("cuMemcpyHtoD_v2", address, data, len(data))

    def download(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, address, size)
        return data.raw

    def fill(self, address, byte, size):
        self.call("cuMemsetD8_v2", address, byte, size)

    def copy_now(self, to, source, size):
        self.call("cuMemcpyDtoD_v2", to, source, size)

    def copy(self, to, source, size, stream):
        self.call("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    # ---- Kernels

    def load_kernel(self, ptx, name):
        module = self._get("cuModuleLoadData", c_void_p, ptx.encode())
        return self._get("cuModuleGetFunction", c_void_p, module, name.encode())

    def launch(self, function, blocks, threads, stream, values):
        """`values`: ctypes scalars."""
        parameters = (c_void_p * len(values))(*map(ctypes.addressof, values))
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)


class Timer:
    """Milliseconds between two events around calls on a stream."""

    def __init__(self, driver, stream):
        self._driver, self._stream = driver, stream
        self._events = [driver._get("cuEventCreate", c_void_p, 0) for _ in range(2)]

    def time(self, function, calls=1):
        """Mean of `calls` calls in a row."""
        begin, end = self._events
        self._driver.call("cuEventRecord", begin, self._stream)
        for _ in range(calls):
            function()
        self._driver.call("cuEventRecord", end, self._stream)
        self._driver.call("cuEventSynchronize", end)
        return self._driver._get("cuEventElapsedTime", c_float, begin, end) / calls
