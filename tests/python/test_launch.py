"""Calls on CUDA tensors of PyTorch, of a PyTorch that only notes what it is asked: contexts, streams, workspaces."""

import contextlib
import sys
import threading
import types
import unittest
from unittest import mock

from support import Test, heed


class Tensor:
    __module__ = "torch"
    is_cuda = True

    def __init__(self, index):
        self.device = types.SimpleNamespace(index=index)

    def __dlpack_device__(self):
        return 2, self.device.index


class NotedTorch:
    """The part of torch that launches use."""

    def __init__(self):
        self.entered, self.contexts, self.streams = [], [], []
        self.cuda = types.SimpleNamespace(
            device=self._device, stream=self._stream, mem_get_info=lambda: self.contexts.append(self.entered[-1]),
            current_stream=lambda: types.SimpleNamespace(cuda_stream=100 + self.entered[-1]),
            ExternalStream=lambda number: types.SimpleNamespace(cuda_stream=number))

    def _device(self, device):
        self.entered.append(device.index)
        return contextlib.nullcontext()

    def _stream(self, stream):
        self.streams.append(stream.cuda_stream)
        return contextlib.nullcontext()


class Launch(Test):
    def setUp(self):
        self.torch = NotedTorch()
        patch = mock.patch.dict(sys.modules, torch=self.torch)
        patch.start()
        self.addCleanup(patch.stop)

    def launch(self, index, stream=None):
        with heed._arrays.launch(Tensor(index), stream) as (handle, _):
            return handle

    def in_new_thread(self, *indices):
        thread = threading.Thread(target=lambda: [self.launch(index) for index in indices])
        thread.start()
        thread.join()

    def test_a_context_for_each_thread_and_device(self):
        self.in_new_thread(0, 1, 0, 1)
        self.assertEqual(self.torch.contexts, [0, 1])
        self.in_new_thread(1, 1)
        self.assertEqual(self.torch.contexts, [0, 1, 1])

    def test_streams(self):
        self.assertEqual(self.launch(1), 101)
        self.assertEqual(self.launch(1, 5), 5)
        self.assertEqual(self.launch(1, types.SimpleNamespace(cuda_stream=6)), 6)
        self.assertEqual(self.torch.streams, [101, 5, 6])


if __name__ == "__main__":
    unittest.main()
