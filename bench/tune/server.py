"""Requests to heed_bench whose refusals and crashes are failures of a candidate."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import heed_server


class Failed(Exception):
    """A candidate cannot be made, is wrong or does not run; the text says why."""


class Server(heed_server.Server):
    def ask(self, **request):
        """The answer. Raises Failed where it is refused, and where the child dies of it."""
        try:
            return super().ask(**request)
        except (heed_server.Refused, heed_server.Ended) as reason:
            raise Failed(f"{request['do']}: {reason}") from reason
