"""Heed and its peers on one measurement, in turns."""
import dataclasses
import gc
import sys
import time

import attention_job
import encoder_job
import layer_job
import linear_job
import plan
import probs_job
import torch_peer
from data import Cannot
from ours import Heed
from timing import ForeignCpu, wait_until_quiet

JOBS = {"attention": attention_job.Job, "linear": linear_job.Job, "probs": probs_job.Job, "layer": layer_job.Job,
        "encoder": encoder_job.Job}
PAUSE = 0.05  # seconds between two libraries: the threads of one poll for a while before they sleep
PATIENCE = 60.0  # seconds of a measurement after which a library gets no further round: 9 of the slowest case that counts fit
QUIET = 0.1  # the share of the machine that other processes may use in a quiet round


@dataclasses.dataclass
class Outcome:
    measurement: object
    kernel: str = ""
    ours_ms: float = None
    ours_reason: str = ""  # why there is no ours_ms
    peers_ms: dict = dataclasses.field(default_factory=dict)
    ratios: dict = dataclasses.field(default_factory=dict)  # by peer: its time / ours, of each round
    reasons: dict = dataclasses.field(default_factory=dict)  # of peers that do not serve the case
    failures: dict = dataclasses.field(default_factory=dict)  # of peers that do, or should, and gave no time
    work: tuple = None  # FLOPs, exponentials and bytes of kinds that heed_bench does not measure
    rounds: int = 0
    quiet_rounds: int = 0  # of these, without much else on the machine


class Context:
    """What jobs share: Heed's programs and its Python package, heed_bench's cases, the number of threads."""

    def __init__(self, heed, hello, build, threads):
        self.heed, self.threads, self.cold_bytes = heed, threads, hello["cold_bytes"]
        self.cases = {case["case"]: case for case in hello["cases"]}
        self.heed_linear = build / "bench/heed_linear_bench"
        self.minilm, self.minilm_folder = build / "bench/demo/minilm/heed_minilm", build / "demo"
        self._build, self._second, self._added = build, None, []

    def add_case(self, shape):
        """All fields of a case that heed_bench did not have. Raises Cannot where it refuses."""
        if shape not in self._added:
            case = self.heed.ask(do="add", shape=shape)
            self.cases[case["case"]] = case
            self._added.append(shape)
        return self.cases[shape["case"]]

    def second_heed(self):
        """Another heed_bench --serve with the same cases; from the first call on, so add cases before."""
        if self._second is None:
            self._second = Heed(self._build / "bench/heed_bench", self.threads)
            for shape in self._added:
                self._second.ask(do="add", shape=shape)
        return self._second

    def heed_package(self):
        folder = str(self._build / "python")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        import heed
        return heed

    def close(self):
        for child in filter(None, (self.heed, self._second)):
            child.close()


def first_line(error):
    return (str(error).strip().splitlines() or [""])[0] or type(error).__name__


class Comparison:
    def __init__(self, context, options):
        self._context, self._options = context, options
        torch_peer.set_threads(options.threads)

    def _job(self, measurement):
        return JOBS[measurement.kind](measurement, self._context)

    def _contenders(self, outcome, job):
        """What takes turns, by name; ours is the first, named "". None: ours cannot."""
        try:
            ready = {"": job.ours()}
        except Exception as error:  # of any kind: its text is the result
            outcome.ours_reason = first_line(error)
            return None
        outcome.kernel = ready[""].kernel
        own = {name: self._job(measurement).reference for name, measurement in plan.references(outcome.measurement).items()}
        for name, prepare in {**job.peers(), **own}.items():
            try:
                ready[name] = prepare()
            except Cannot as error:
                outcome.reasons[name] = first_line(error)
            except Exception as error:  # of any library
                outcome.failures[name] = first_line(error)
        return ready

    def run(self, measurement):
        outcome, job = Outcome(measurement), self._job(measurement)
        ready = self._contenders(outcome, job)
        if ready is None:
            return outcome
        if hasattr(job, "work"):
            outcome.work = job.work()
        gc.collect()
        gc.disable()
        times, quiet = self._rounds(ready, outcome)
        gc.enable()
        for calls in ready.values():
            if hasattr(calls, "close"):
                calls.close()
        if outcome.ours_reason:
            return outcome
        ours = times.pop("")
        outcome.rounds, outcome.quiet_rounds, outcome.ours_ms = len(quiet), sum(quiet), min(ours)
        outcome.peers_ms = {name: min(of_peer) for name, of_peer in times.items()}
        outcome.ratios = {name: self._ratios(of_peer, ours, quiet) for name, of_peer in times.items()}
        return outcome

    def _ratios(self, of_peer, ours, quiet):
        """One for each round that both have; where one may wait, for the quiet ones, if there are any."""
        pairs = list(zip(of_peer, ours, quiet))
        counted = [pair for pair in pairs if pair[2]] if self._options.wait else []
        return [peer / own for peer, own, _ in counted or pairs]

    def _rounds(self, ready, outcome):
        """The fastest call of each library in each round, and which rounds were quiet: all, if one may wait and it does not
        take too many. A library that is out of patience has fewer rounds; a peer that fails in one has none."""
        rounds, wait = self._options.rounds, self._options.wait
        times, spent, quiet = {name: [] for name in ready}, dict.fromkeys(ready, 0.0), []
        for done in range(2 * rounds):
            if sum(quiet) == rounds or (done >= rounds and wait == 0):
                break
            wait_until_quiet(wait)
            foreign = ForeignCpu()
            for name, calls in list(ready.items())[::-1 if done % 2 else 1]:
                if name and (spent[name] > PATIENCE or name in outcome.failures):
                    continue
                time.sleep(PAUSE)
                start = time.perf_counter()
                try:
                    times[name].append(calls.round(self._options.seconds))
                except Exception as error:  # of any library
                    if not name:
                        outcome.ours_reason = first_line(error)
                        return {}, quiet
                    outcome.failures[name] = first_line(error)
                spent[name] += time.perf_counter() - start
            quiet.append(foreign.share() < QUIET)
            if all(seconds > PATIENCE for seconds in spent.values()):
                break
        return {name: of_library for name, of_library in times.items() if name not in outcome.failures}, quiet
