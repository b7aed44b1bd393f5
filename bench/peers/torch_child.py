"""PyTorch's attention in a process of its own that is held to an instruction set, in turns with others as any peer.

As a program: answers requests, a line of JSON each: {"do": "prepare", "case": .., "dtype": .., "threads": ..}, then
{"do": "round", "seconds": ..} with {"ms": ..}."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import heed_server

# Its own kernels, oneDNN's and MKL's. What get_cpu_capability() then says.
HELD = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
CAPABILITY = {"avx2": "AVX2"}


class NotHeld(Exception):
    """PyTorch uses another instruction set than it was asked for."""


class TorchChild:
    """Raises NotHeld, and heed_server's Refused where PyTorch raised."""

    def __init__(self, case, dtype, isa, threads):
        settings = [f"{name}={value}" for name, value in HELD[isa].items()]
        self._server = heed_server.Server(["env", *settings, sys.executable, "-B", __file__])
        capability = self._server.ask(do="prepare", case=case, dtype=dtype, threads=threads)["capability"]
        if capability != CAPABILITY[isa]:
            raise NotHeld(f"PyTorch runs on {capability}, not {CAPABILITY[isa]}")

    def round(self, seconds):
        return self._server.ask(do="round", seconds=seconds)["ms"]

    def close(self):
        self._server.close()


def serve():
    """Until stdin ends."""
    import torch

    import torch_peer
    from data import Data

    answers, calls = os.fdopen(os.dup(1), "w"), None
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                torch_peer.set_threads(request["threads"])
                calls = torch_peer.sdpa(Data(request["case"], request["dtype"], 1))
                answer = {"capability": torch.backends.cpu.get_cpu_capability()}
            else:
                answer = {"ms": calls.round(request["seconds"])}
        except Exception as error:  # of any library: its text is the answer
            answer = {"error": str(error).strip().splitlines()[0] or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
