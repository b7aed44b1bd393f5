"""Heed's side: heed_bench as a child that answers requests, heed_linear_bench for each round of a dense layer."""
import pathlib
import subprocess
import sys

from data import Cannot

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import heed_server


class Heed(heed_server.Server):
    def __init__(self, program, threads):
        super().__init__([program, "--serve", "--threads", threads])

    def ask(self, **request):
        """The answer. Raises Cannot where heed_bench refuses."""
        try:
            return super().ask(**request)
        except heed_server.Refused as reason:
            raise Cannot(str(reason)) from reason
        except heed_server.Ended as reason:
            sys.exit(f"heed_bench: {reason} on {request}")


class HeedCalls:
    """A case on one of our kernels."""

    def __init__(self, heed, **request):
        self._heed, self._request = heed, request
        self.kernel = heed.ask(do="time", seconds=0, **request)["kernel"]

    def round(self, seconds):
        return self._heed.ask(do="time", seconds=seconds, **self._request)["ms"]


class HeedLinear:
    """A dense layer: `rows`, `dim_in`, `dim_out`."""
    kernel = "linear"

    def __init__(self, program, shape, dtype, threads):
        self._command = [program, *map(str, shape), dtype, str(threads)]

    def round(self, seconds):
        done = subprocess.run([*self._command, str(seconds)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Cannot(done.stderr.strip())
        return float(done.stdout)
