"""Candidates timed in turns: each round times every one, and minima count, so that a slow moment of the machine meets all."""
import statistics

from server import Failed

# After so many rounds a candidate may be so much slower than the best; noise of a shared machine is below that.
PATIENCE = {1: 1.15, 2: 1.07, 3: 1.04}


def hopeless(rounds, ratio):
    return ratio > PATIENCE.get(rounds, float("inf"))


class Race:
    """On one case; `fields` are the kernel's arguments of the generator. Decode runs on keys that have left the caches."""

    def __init__(self, server, case, fields, seconds):
        self._server, self._seconds = server, seconds
        self._request = {"case": case, "dtype": fields["dtype"], "kv": fields.get("kv_dtype", ""),
                         "cold": fields["phase"] == "decode"}
        self.ms = {}
        self._rounds = []

    def check(self, candidate, oracle):
        """Raises Failed unless random problems come out alike."""
        found = self._server.ask(do="compare", kernel=candidate.name, **{"with": oracle.name})["difference"]
        if found:
            raise Failed(f"wrong result: {found}")

    def round(self, candidates):
        names = list({candidate.name: None for candidate in candidates})
        self._rounds.append({name: self._server.ask(do="time", kernel=name, seconds=self._seconds, **self._request)["ms"]
                             for name in names})
        self.ms = {name: min(ms, self.ms.get(name, ms)) for name, ms in self._rounds[-1].items()}

    def ratio(self, candidate, other):
        """The ratio of the times: by the fastest rounds or by the median of the pairs, whichever is worse: luck seldom has both."""
        return max(self.ms[candidate.name] / self.ms[other.name], 1 / self.paired_speed(candidate, other))

    def paired_speed(self, candidate, other):
        """How many times as fast as another in the median round."""
        return statistics.median(ms[other.name] / ms[candidate.name] for ms in self._rounds)

    def shares(self):
        """Shares of the roofline by name of the kernel: heed_bench's share_of_floor for prefill, its share_of_ceiling for decode."""
        self._server.ask(do="ceilings")
        return {result["kernel"]: result["share_of_ceiling" if "gbps" in result else "share_of_floor"]
                for result in self._server.ask(do="report")["results"]}
