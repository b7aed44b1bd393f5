"""Heed's side: heed_bench as a child that answers requests, heed_linear_bench for each round of a dense layer."""
import json
import subprocess
import sys

from data import Cannot


class Heed:
    """heed_bench --serve. Its server.h has the requests."""

    def __init__(self, program, threads):
        self._child = subprocess.Popen([program, "--serve", "--threads", str(threads)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.pid = self._child.pid

    def ask(self, **request):
        """The answer. Raises Cannot where heed_bench refuses."""
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: there is no answer either
        line = self._child.stdout.readline()
        if not line:
            sys.exit(f"heed_bench ended with status {self._child.wait()} on {request}")
        answer = json.loads(line)
        if "error" in answer:
            raise Cannot(answer["error"])
        return answer

    def close(self):
        self._child.stdin.close()
        self._child.wait()


class HeedCalls:
    """A case on one of our rows."""

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
