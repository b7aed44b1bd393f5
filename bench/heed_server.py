"""heed_bench --serve as a child; server.h has its requests."""
import json
import signal
import subprocess


class Refused(Exception):
    """The text of heed_bench's error."""


class Ended(Exception):
    """The child is gone; the text says how it ended."""


class Server:
    def __init__(self, command):
        self._child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._child.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def ask(self, **request):
        """The answer. Raises Refused, and Ended where there is none."""
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: there is no answer either
        line = self._child.stdout.readline()
        if not line:
            status = self._child.wait()
            raise Ended(f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def close(self):
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()
