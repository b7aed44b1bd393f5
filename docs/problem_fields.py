"""The page of heed_problem's fields, as heed.h and fields.h have them; printed when run."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runtime"))
import headers


def cells(field, entry):
    kind = f"{field.type} *" if field.is_pointer else field.type + (f"[{field.count}]" if field.count else "")
    return f"`{field.name}`", f"`{kind}`", f"`{entry.initial or 0}`", entry.allowed, field.doc


def rows():
    entries = {entry.name: entry for kind in ("PROBLEM", "OTHER") for entry in headers.entries(f"HEED_{kind}_FIELDS")}
    return [cells(field, entries[field.name]) for field in headers.struct("heed_problem") if field.name != "struct_size"]


def page():
    table = ("field", "type", "default", "allowed", "meaning"), ("---",) * 5, *rows()
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table)
    return "# The fields of heed_problem\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
