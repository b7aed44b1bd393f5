"""Heed and its peers on one measurement, in turns."""
import dataclasses
import gc
import math
import time

import onnx_peer
import openvino_peer
import torch_peer
from data import Cannot, Data
from heed import HeedCalls, HeedLinear
from timing import ForeignCpu, wait_until_quiet

PAUSE = 0.05  # seconds between two libraries: the threads of one poll for a while before they sleep
PATIENCE = 20.0  # seconds of a measurement after which a library gets no further round
QUIET = 0.1  # the share of the machine that other processes may use in a quiet round


@dataclasses.dataclass
class Outcome:
    measurement: object
    kernel: str = ""
    ours_ms: float = None
    ours_reason: str = ""  # why there is no ours_ms
    peers_ms: dict = dataclasses.field(default_factory=dict)
    reasons: dict = dataclasses.field(default_factory=dict)  # of peers that have no time
    quiet_rounds: int = 0


class Comparison:
    def __init__(self, heed, hello, options):
        self._heed, self._options = heed, options
        self._cases = {case["case"]: case for case in hello["cases"]}
        self._cold_bytes = hello["cold_bytes"]
        torch_peer.set_threads(options.threads)

    def _ours(self, measurement):
        if measurement.linear:
            options = self._options
            return HeedLinear(options.heed_linear, measurement.linear, measurement.dtype, options.threads)
        return HeedCalls(self._heed, **measurement.request())

    def _data(self, measurement):
        case = self._cases[measurement.case]
        kv_elements = case["batch"] * case["num_kv_heads"] * case["kv_len"] * (case["head_dim"] + case["head_dim_v"])
        kv_bytes = kv_elements * (4 if measurement.dtype == "f32" else 2)
        return Data(case, measurement.dtype, math.ceil(self._cold_bytes / kv_bytes) if measurement.temperature == "cold" else 1)

    def _peers(self, measurement):
        """Functions by name that make a peer ready. They own the data: keep them as long as the peers."""
        threads = self._options.threads
        if measurement.linear:
            return {"torch_linear": lambda: torch_peer.linear(measurement.linear, measurement.dtype)}
        if measurement.isa:
            return {}
        data = self._data(measurement)
        if measurement.kv:
            same_keys = {**measurement.request(), "kv": ""}
            return {f"heed_{measurement.dtype}_keys": lambda: HeedCalls(self._heed, **same_keys),
                    "openvino_u8_keys": lambda: openvino_peer.decode(data, threads, "u8")}
        peers = {"torch_sdpa": lambda: torch_peer.sdpa(data),
                 "ort_gqa": lambda: onnx_peer.gqa(data, threads),
                 "ort_attention": lambda: onnx_peer.attention(data, threads)}
        if measurement.temperature:
            peers["openvino_cache"] = lambda: openvino_peer.decode(data, threads)
        else:
            peers["openvino_sdpa"] = lambda: openvino_peer.sdpa(data, threads)
        return peers

    def run(self, measurement):
        outcome = Outcome(measurement)
        try:
            ours = self._ours(measurement)
        except Cannot as error:
            outcome.ours_reason = str(error)
            return outcome
        outcome.kernel = ours.kernel
        ready, peers = {"": ours}, self._peers(measurement)
        for name, prepare in peers.items():
            try:
                ready[name] = prepare()
            except Exception as error:  # of any library: its text is the result
                outcome.reasons[name] = str(error).strip().splitlines()[0] or type(error).__name__
        gc.collect()
        gc.disable()
        fastest, outcome.quiet_rounds = self._rounds(ready)
        gc.enable()
        outcome.ours_ms = fastest.pop("")
        outcome.peers_ms = fastest
        return outcome

    def _rounds(self, ready):
        """The fastest call of each, and how many rounds were quiet: all, if one may wait and it does not take too many."""
        rounds, wait = self._options.rounds, self._options.wait
        fastest, spent, quiet = dict.fromkeys(ready, math.inf), dict.fromkeys(ready, 0.0), 0
        for done in range(2 * rounds):
            if quiet == rounds or (done >= rounds and wait == 0):
                break
            wait_until_quiet(wait)
            foreign = ForeignCpu(self._heed.pid)
            for name, calls in ready.items():
                if spent[name] > PATIENCE:
                    continue
                time.sleep(PAUSE)
                start = time.perf_counter()
                fastest[name] = min(fastest[name], calls.round(self._options.seconds))
                spent[name] += time.perf_counter() - start
            quiet += foreign.share() < QUIET
        return fastest, quiet
