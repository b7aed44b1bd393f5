"""What a trial is made in: candidates for a kernel, each generated once, and programs that hold some of them.

A program is heed_bench with a table of these kernels and nothing else; `parts` (tune.json of a build) say what it is made of."""
import contextlib
import fcntl
import hashlib
import json
import pathlib
import resource
import signal
import subprocess
import tempfile

import space
from server import Failed, Server  # whose import lets the next one find the folder above

import build_parts

CPU_SECONDS = 120  # of one program that a candidate is made by


class Candidate:
    """A kernel of the table that was made: its name there, object file and line of the registry."""

    def __init__(self, folder, name):
        self.name, self.object, self.line = name, folder / f"{name}.o", folder / f"{name}.inc"


def run(command, what):
    """What the command prints. Raises Failed with what it says of an error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1)))
    if done.returncode == -signal.SIGXCPU:
        raise Failed(f"{what}: more than {CPU_SECONDS} s of CPU time")
    if done.returncode < 0:
        raise Failed(f"{what}: ended by {signal.Signals(-done.returncode).name}")
    if done.returncode > 0:
        raise Failed(f"{what}: " + (done.stderr.strip() or f"exit status {done.returncode}").removeprefix("heed_generate: "))
    return done.stdout


class TrialBuilder:
    """Processes may share a folder, whose parent has the lock: one of them measures at a time, and then none compiles."""

    def __init__(self, build, folder, kernel, threads):
        self.parts = build_parts.parts_of(build)
        self.arguments, _ = build_parts.arguments_of(self.parts, kernel)
        self.fields = dict(argument.split("=", 1) for argument in self.arguments)
        if self.fields["isa"].startswith("sm"):
            raise SystemExit(f"{kernel}: kernels of CUDA have no speed parameters")
        self.kernel, self.folder, self.threads = kernel, folder, threads
        self.generator_hash = hashlib.sha256(pathlib.Path(self.parts["generator"]).read_bytes()).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        self.defaults = space.start(self.parameters())

    def parameters(self, l2_bytes=None):
        """The parameters of the kernel, as heed_generate lists them."""
        l2 = [f"l2_bytes={l2_bytes}"] if l2_bytes else []
        return json.loads(run([self.parts["generator"], f"name={self.kernel}", *self.arguments, *l2, "parameters=list"],
                              "parameters"))

    def candidate(self, values=None, schedule=None):
        """The kernel with these parameters, or by another schedule. Raises Failed. What the schedule chooses by itself is left out, so
        that its own choice has one name."""
        changes = {name: value for name, value in (values or {}).items() if value != self.defaults.get(name)}
        options = space.as_arguments(changes) + ([f"schedule={schedule}"] if schedule else [])
        key = hashlib.sha256(" ".join([self.generator_hash, *self.arguments, *options]).encode()).hexdigest()[:12]
        name = f"t{key}_{self.kernel}"
        folder = self.folder / "kernels" / key
        found = Candidate(folder, name)
        if not found.line.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with self.lock(fcntl.LOCK_SH):
                run([self.parts["generator"], f"name={name}", *self.arguments, *options, f"out={folder}"], "generation")
        return found

    def oracle(self):
        """By the default schedule; where the kernel has none, for its instructions, what the schedule chooses by itself."""
        return self.candidate() if self.fields["isa"] in ("avx512bf16", "amx") else self.candidate(schedule="default")

    @contextlib.contextmanager
    def program(self, candidates):
        """A server of requests on these candidates, while none compiles or measures on this machine."""
        unique = {candidate.name: candidate for candidate in candidates}
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            table, program = pathlib.Path(folder, "kernel_table.inc"), pathlib.Path(folder, "heed_bench")
            table.write_text("".join(candidate.line.read_text() for candidate in unique.values()))
            with self.lock(fcntl.LOCK_SH):
                run([*self.parts["compile"], f"-I{folder}", self.parts["table"], *(c.object for c in unique.values()),
                     *self.parts["link"], "-o", program], "link")
            with self.lock(fcntl.LOCK_EX), Server([program, "--serve", "--threads", self.threads]) as server:
                yield server

    @contextlib.contextmanager
    def lock(self, kind):
        with open(self.folder.parent / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, kind)
            yield
