"""An array in the memory of a CUDA driver, which speaks DLPack and belongs to no framework."""

import ctypes
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "bench" / "gpu"))

from driver import Driver

CUDA = 2
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of DLPack, by NumPy's kinds


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


make_capsule = ctypes.pythonapi.PyCapsule_New
make_capsule.argtypes, make_capsule.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object


class DeviceArray:
    """Packed; a copy of a NumPy array. It lives as long as all that is exported."""

    driver = None

    @classmethod
    def start(cls):
        cls.driver = Driver()
        cls.driver.make_context()

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype
        self._bytes = array.nbytes
        self._address = self.driver.allocate(self._bytes)
        self.driver.upload(self._address, np.ascontiguousarray(array).tobytes())
        strides = [stride // array.itemsize for stride in np.empty(self.shape, self.dtype).strides]
        self._extents = (ctypes.c_int64 * array.ndim)(*self.shape), (ctypes.c_int64 * array.ndim)(*strides)
        self._managed = DLManagedTensor(DLTensor(self._address, CUDA, 0, array.ndim, CODES[array.dtype.kind], 8 * array.itemsize, 1,
                                                 *self._extents, 0), None, None)

    def __dlpack_device__(self):
        return CUDA, 0

    def __dlpack__(self, **_options):
        return make_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def numpy(self):
        self.driver.synchronize(None)
        return np.frombuffer(self.driver.download(self._address, self._bytes), self.dtype).reshape(self.shape).copy()
