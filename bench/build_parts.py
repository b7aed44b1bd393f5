"""What a build's rows and heed_bench are made of: tune.json in the build's folder."""
import json
import pathlib


def parts_of(build):
    return json.loads((build / "tune.json").read_text())


def arguments_of(parts, row):
    """Of heed_generate for a row of the table: what the row is, and the parameters that schedules/tuned has for it."""
    rows = dict(line.split(" ", 1) for line in pathlib.Path(parts["rows"]).read_text().splitlines())
    if row not in rows:
        raise SystemExit(f"no row of the table is named {row}")
    arguments, _, tuned = rows[row].partition(" | ")
    return arguments.split(), tuned.split()
