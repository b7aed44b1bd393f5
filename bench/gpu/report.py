"""What a run found: facts, results, failures, what did not run; as JSON and as a table."""
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

SMI_FIELDS = ("driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem", "power.draw",
              "power.limit", "temperature.gpu", "ecc.mode.current", "mig.mode.current", "pstate")


def ask_smi():
    """What nvidia-smi says of device 0, {} without it."""
    if not shutil.which("nvidia-smi"):
        return {}
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.split(",")]
    return dict(zip(SMI_FIELDS, values)) if done.returncode == 0 and len(values) == len(SMI_FIELDS) else {}


def dump(content):
    """JSON with one line for each entry of a list of objects."""
    def value_text(value):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join("  " + json.dumps(entry) for entry in value) + "\n ]"
        return json.dumps(value, indent=1 if isinstance(value, dict) else None).replace("\n", "\n ")
    return "{\n" + ",\n".join(f' "{key}": {value_text(value)}' for key, value in content.items()) + "\n}\n"


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


class Report:
    """Filled by the phases."""

    def __init__(self, driver, heed, manifest, options):
        self.facts = {
            "gpu": driver.name, "capability": driver.capability, "memory_bytes": driver.memory_bytes,
            "cuda_driver": driver.version, "smi_before": ask_smi(), "cpu": cpu_name(),
            "cpus": len(os.sched_getaffinity(0)), "system": platform.release(), "python": platform.python_version(),
            "torch": None, "heed_version": heed.version, "bundle": manifest,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "phases": options.only, "tiny": options.tiny}
        self.tests, self.sanitizer, self.startup, self.no_jit = [], [], [], []
        self.ceilings, self.results, self.decode, self.gradients, self.peers_skipped = {}, [], [], [], []
        self.failures, self.not_run = [], []
        self.seconds = {}

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED {text}", flush=True)

    def no_time(self, what):
        self.not_there(what, "no time was left", time=True)

    def not_there(self, what, reason, time=False):
        self.not_run.append({"what": what, "reason": reason, "for_lack_of_time": time})

    @staticmethod
    def log(title, output):
        """The end of a process's output, on stderr."""
        print(f"---- {title}\n{output[-6000:]}\n----", file=sys.stderr, flush=True)

    def add(self, to, entries, skipped):
        """Entries of a case, to `results` or `gradients`."""
        to += entries
        self.peers_skipped += skipped
        print(row_text(entries, skipped), flush=True)

    def exit_status(self):
        return 1 if self.failures else 4 if any(entry["for_lack_of_time"] for entry in self.not_run) else 0

    def write(self, path):
        content = {"machine": self.facts, "seconds": self.seconds, "failures": self.failures, "not_run": self.not_run,
                   "tests": self.tests, "sanitizer": self.sanitizer, "tests_without_ptx_jit": self.no_jit,
                   "startup": self.startup, "ceilings": self.ceilings, "against": against(self.results),
                   "results": self.results, "decode": self.decode, "gradients": self.gradients,
                   "gradients_against": against(self.gradients), "peers_skipped": self.peers_skipped}
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(content), encoding="utf-8")

    def print_end(self, path):
        print(f"\nceilings: {json.dumps(self.ceilings)}")
        for peer, numbers in {**against(self.results), **against(self.gradients)}.items():
            print(f"speed against {peer}: {json.dumps(numbers)}")
        for line in self.startup:
            print(f"start of {line['case']}, PTX JIT {'on' if line['ptx_jit'] else 'off'}: context {line['context_ms']} ms, "
                  f"plan and first launch {line['above_context_ms_median']} ms above it")
        for entry in self.not_run:
            print(f"not run: {entry['what']}: {entry['reason']}")
        for text in self.failures:
            print(f"FAILED {text}")
        print(f"{len(self.failures)} failures; {path}")


def against(results):
    """For each peer, how our speed compares."""
    numbers = {}
    for peer in sorted({entry["peer"] for entry in results if entry["peer"]}):
        ratios = [entry["ratio"] for entry in results if entry["peer"] == peer]
        numbers[peer] = {"cases": len(ratios), "lowest": round(min(ratios), 3), "median": round(statistics.median(ratios), 3),
                         "geometric_mean": round(statistics.geometric_mean(ratios), 3),
                         "below_0.9": [f"{e['case']} {e['dtype']}" for e in results if e["peer"] == peer and e["ratio"] < 0.9]}
    return numbers


def row_text(entries, skipped):
    """A case in the table: our time and rate, then the speed against each peer."""
    first = entries[0]
    share = f"{first['share_of_ceiling']:6.1%} of matmul" if first["share_of_ceiling"] else ""
    peers = [f"{e['ratio']:5.2f}x {e['peer']}" for e in entries if e["peer"]] + [f"  no {s['peer']}" for s in skipped]
    return (f"{first['case']:22} {first['dtype']:4} {first['ours_ms']:9.3f} ms {first['tflops']:8.2f} TFLOP/s {share:15} "
            f"{', '.join(peers)}")
