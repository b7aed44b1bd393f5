"""Adversarial case 64: one corpus, the same status and bits through the C API, the C++ API, and from kernels that check
every promise that Halide takes for granted. Usage: test_replay.py PLAIN CHECKED CORPUS"""
import subprocess
import sys


def answers(program: str, corpus: str) -> list[str]:
    return subprocess.run([program, corpus], check=True, capture_output=True, text=True).stdout.splitlines()


plain, checked, corpus = sys.argv[1:]
expected = answers(plain, corpus)
got = answers(checked, corpus)
different = [pair for pair in zip(expected, got) if pair[0] != pair[1]]
for pair in different:
    print("plain: %s\nchecked: %s" % pair)
succeeded = sum(" HEED_OK " in line for line in expected)
print(f"{len(expected)} inputs, {succeeded} of them run, {len(different)} differ")
sys.exit(bool(different) or len(expected) != len(got) or 2 * succeeded < len(expected))
