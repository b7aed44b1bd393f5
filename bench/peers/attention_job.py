"""Cases of heed_bench, compared with attention in PyTorch, ONNX Runtime and OpenVINO."""
import math

import onnx_peer
import openvino_peer
import torch_peer
from data import Data
from ours import HeedCalls
from torch_child import TorchChild


class Job:
    def __init__(self, measurement, context):
        self._measurement, self._context = measurement, context
        self._case = context.cases[measurement.case]

    def ours(self):
        return HeedCalls(self._context.heed, **self._measurement.request())

    def reference(self):
        """Ours as what another measurement is held against: by a child of its own, for each keeps one case prepared."""
        return HeedCalls(self._context.second_heed(), **self._measurement.request())

    def _data(self):
        case, m = self._case, self._measurement
        kv_elements = case["batch"] * case["num_kv_heads"] * case["kv_len"] * (case["head_dim"] + case["head_dim_v"])
        kv_bytes = kv_elements * (4 if m.dtype == "f32" else 2)
        return Data(case, m.dtype, math.ceil(self._context.cold_bytes / kv_bytes) if m.temperature == "cold" else 1)

    def peers(self):
        """Functions by name that make a peer ready. They own the data: keep them as long as the peers."""
        m, threads = self._measurement, self._context.threads
        if m.isa:
            return {"torch_sdpa": lambda: TorchChild(self._case, m.dtype, m.isa, threads)}
        data = self._data()
        if m.kv:
            same_keys = {**m.request(), "kv": ""}
            return {f"heed_{m.dtype}_keys": lambda: HeedCalls(self._context.heed, **same_keys),
                    "openvino_u8_keys": lambda: openvino_peer.decode(data, threads, "u8")}
        peers = {"torch_sdpa": lambda: torch_peer.sdpa(data),
                 "ort_gqa": lambda: onnx_peer.gqa(data, threads),
                 "ort_attention": lambda: onnx_peer.attention(data, threads)}
        if m.temperature:
            if data.group_size >= 8:
                peers["torch_matmuls"] = lambda: torch_peer.matmuls(data)
            peers["openvino_cache"] = lambda: openvino_peer.decode(data, threads)
        else:
            peers["openvino_sdpa"] = lambda: openvino_peer.sdpa(data, threads)
        return peers
