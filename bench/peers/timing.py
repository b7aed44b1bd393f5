"""Times functions as heed_bench times calls: the fastest of samples that are long enough for the clock."""
import os
import resource
import time

SLOW = 0.5  # seconds


class Calls:
    """A library made ready for a measurement: functions to call in turns, one for each copy of k and v. `before_round`, not timed,
    undoes what calls leave. `keep`: arrays that the functions read and do not own. `kernel`: what runs, where it is
    ours."""

    def __init__(self, functions, before_round=lambda: None, keep=None, kernel=""):
        self._functions, self._keep, self.kernel = functions, keep, kernel
        self._before_round = before_round
        self._next = 0
        self._calls_per_sample = 1  # until a call was timed

    def _sample(self):
        """Seconds of a call."""
        count = len(self._functions)
        calls = [self._functions[(self._next + i) % count] for i in range(self._calls_per_sample)]
        self._next = (self._next + len(calls)) % count
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)

    def round(self, seconds):
        """ms of the fastest call, of `seconds` and at least two samples; a slow call is not slower for being the first."""
        self._before_round()
        samples, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or (len(samples) < 2 and sum(samples) < SLOW):
            samples.append(self._sample())
            self._calls_per_sample = max(1, min(64, int(20e-6 / min(samples))))
        return min(samples) * 1e3


def machine_seconds():
    """CPU time that all processes used."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(most_seconds):
    """Until nothing else keeps the machine busy: less than 5 % of it for a quarter of a second."""
    end = time.time() + most_seconds
    while time.time() < end:
        busy, start = machine_seconds(), time.time()
        time.sleep(0.25)
        if (machine_seconds() - busy) / (time.time() - start) / os.cpu_count() < 0.05:
            return


def children():
    """Process ids of those that this process started and that live."""
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()


class ForeignCpu:
    """The share of the machine that others used since the start: not this process and its children."""

    def __init__(self):
        self._start, self._foreign = time.time(), self._foreign_seconds()

    @staticmethod
    def _foreign_seconds():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in used)
        for child in children():
            with open(f"/proc/{child}/stat", encoding="ascii") as file:
                user, system = map(int, file.read().rpartition(")")[2].split()[11:13])
            own += (user + system) / os.sysconf("SC_CLK_TCK")
        return machine_seconds() - own

    def share(self):
        foreign = self._foreign_seconds() - self._foreign
        return max(0.0, foreign / (time.time() - self._start) / os.cpu_count())
