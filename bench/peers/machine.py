"""The machine that results were measured on."""
import pathlib


def machine():
    """What /proc/cpuinfo says."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    units = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in facts.get("flags", "").split()]
    return {"cpu": facts.get("model name", ""), "family": facts.get("cpu family", ""), "model": facts.get("model", ""), "units": units}
