"""schedules/tuned/ISA.json: parameters that a search found, by kernel, which builds hand to heed_generate."""
import json


def load(path):
    return json.loads(path.read_text()) if path.exists() else {}


def store(path, kernel, entry):
    """Writes one kernel's entry and keeps the others."""
    table = {**load(path), kernel: entry}
    rows = [f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
