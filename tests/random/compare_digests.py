"""The programs of the arguments give the same answers and bits to the same random problems."""
import subprocess
import sys

PROBLEMS = 1200


def digest(program):
    run = subprocess.run([program, "--problems", str(PROBLEMS), "--digest"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{program}:\n{run.stdout[-2000:]}")
    return run.stdout.splitlines()


first, second = (digest(program) for program in sys.argv[1:])
different = [pair for pair in zip(first, second) if pair[0] != pair[1]]
for pair in different[:10]:
    print("{}\n  {}".format(*pair))
right = sum(" right " in line for line in first)
print(f"{len(first)} problems, {right} of them solved, {len(different)} differ")
sys.exit(len(first) != len(second) or bool(different) or 3 * right < len(first))
