"""Branches of the runtime that tests reach: report.py BUILD_FOLDER SOURCE_FOLDER [--missed] PROGRAM...

Counts as Clang's source-based coverage does: each condition of the source (if, loop, ?:, case, operand of && and ||) has
two branches, and a branch counts once however often a template or an inline function is compiled. No edge that only the
compiler knows (exceptions, destructors) counts. unreached.txt lists the branches that no test can take, with the reason;
they are left out, and one that is taken all the same is an error."""
import collections
import json
import pathlib
import subprocess
import sys

LEAST = 95  # percent


def export(build: pathlib.Path, programs: list[str]) -> dict:
    profiles = [str(path) for path in (build / "profiles").glob("*.profraw")]
    merged = str(build / "merged.profdata")
    subprocess.run(["llvm-profdata-14", "merge", "-o", merged, *profiles], check=True)
    objects = [word for program in programs[1:] for word in ("-object", program)]
    command = ["llvm-cov-14", "export", "-skip-expansions", "-skip-functions", f"-instr-profile={merged}", programs[0]]
    return json.loads(subprocess.run(command + objects, check=True, capture_output=True).stdout)


class Source:
    """One file: how often each of its branches is taken, by (line, column, side)."""

    def __init__(self, path: pathlib.Path) -> None:
        self.lines = path.read_text().splitlines()
        self.taken: dict[tuple[int, int, bool], int] = collections.Counter()

    def add(self, branches: list[list[int]]) -> None:
        for line, column, _, _, if_true, if_false, *_ in branches:
            self.taken[line, column, True] += if_true
            self.taken[line, column, False] += if_false

    def leave_out(self, text: str, side: str) -> bool:
        """Forgets a side of the conditions that start with `text`; false when there is none or one is taken."""
        keys = [key for key in self.taken if self.lines[key[0] - 1][key[1] - 1 :].startswith(text)
                and side in (str(key[2]).lower(), "both")]
        right = keys and not any(self.taken[key] for key in keys)
        for key in keys:
            del self.taken[key]
        return bool(right)


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--missed"]
    build, root = pathlib.Path(arguments[0]), pathlib.Path(arguments[1]).resolve()
    sources: dict[str, Source] = {}
    lists = (pathlib.Path(__file__).parent / "instrumented.txt").read_text().splitlines()
    uncounted = {line.removeprefix("!src:*/") for line in lists if line.startswith("!")}
    for file in export(build, arguments[2:])["data"][0]["files"]:
        path = pathlib.Path(file["filename"])
        if path.is_relative_to(root / "runtime") and (name := str(path.relative_to(root))) not in uncounted:
            sources.setdefault(name, Source(path)).add(file["branches"])
    wrong = 0
    for line in (pathlib.Path(__file__).parent / "unreached.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, side, text, _ = (word.strip() for word in line.split(" | "))
        if not sources[name].leave_out(text, side):
            print(f"unreached.txt: {name} has no condition {text}, or its {side} side is taken")
            wrong += 1
    total = reached = 0
    folders: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for name, source in sorted(sources.items()):
        taken = sum(count > 0 for count in source.taken.values())
        total += len(source.taken)
        reached += taken
        folder = folders[str(pathlib.PurePath(name).parent)]
        folder[0] += taken
        folder[1] += len(source.taken)
        share = 100 * taken / len(source.taken) if source.taken else 100
        print(f"{name:40} {taken:5} of {len(source.taken):5}  {share:5.1f} %")
        for (line, column, side), count in sorted(source.taken.items()):
            if count == 0 and "--missed" in sys.argv:
                print(f"    {line}:{column} never {str(side).lower()}: {source.lines[line - 1].strip()}")
    for folder, (taken, of) in sorted(folders.items()):
        print(f"{folder + '/':40} {taken:5} of {of:5}  {100 * taken / max(of, 1):5.1f} %")
    print(f"{'all':40} {reached:5} of {total:5}  {100 * reached / total:5.1f} %; at least {LEAST} % are wanted")
    return 1 if wrong or 100 * reached < LEAST * total else 0


if __name__ == "__main__":
    sys.exit(main())
