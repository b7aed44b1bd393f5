"""heed_bench --serve as a child; bench/server.h has its requests."""
import json
import signal
import subprocess


class Failed(Exception):
    """A candidate cannot be made, is wrong or does not run; the text says why."""


class Server:
    def __init__(self, command):
        self._child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()

    def ask(self, **request):
        """The answer. Raises Failed where it is refused, and where the child dies of it."""
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: there is no answer either
        line = self._child.stdout.readline()
        if not line:
            status = self._child.wait()
            raise Failed(f"{request['do']}: ended by {signal.Signals(-status).name}" if status < 0 else
                         f"{request['do']}: exit status {status}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{request['do']}: {answer['error']}")
        return answer
