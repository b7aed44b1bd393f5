"""What is measured: cases of heed_bench in element types, and dense layers."""
import dataclasses
import fnmatch

DTYPES = ("f32", "bf16", "f16")
SUITE_DTYPES = {"main": DTYPES, "rag": ("f32", "bf16"), "small": ("f32", "bf16"), "lengths": ("f32", "bf16")}
LINEAR_SHAPES = [(2048, 4096, 4096), (2048, 1024, 3072), (1000, 512, 160), (128, 4096, 4096), (16, 4096, 4096),
                 (16, 1024, 3072), (1, 4096, 4096)]  # rows, dim_in, dim_out


@dataclasses.dataclass(frozen=True)
class Measurement:
    case: str
    dtype: str
    temperature: str = ""  # of decode cases "warm" or "cold"
    kv: str = ""  # "i8": our keys and values, beside our own of `dtype`
    isa: str = ""  # our row is held to it
    linear: tuple = ()  # a dense layer's shape

    def title(self):
        return " ".join(filter(None, [self.case, self.temperature, self.dtype, self.kv, self.isa]))

    def request(self):
        """For heed_bench."""
        return {"case": self.case, "dtype": self.dtype, "kv": self.kv, "isa": self.isa, "cold": self.temperature == "cold"}

    def flops(self):
        rows, dim_in, dim_out = self.linear
        return 2 * rows * dim_in * dim_out


def measurements(cases, patterns, dtypes):
    """In the order that they are measured. `cases`: heed_bench's; `patterns`: of names, none: all."""
    found = []
    for case in cases:
        for dtype in SUITE_DTYPES[case["suite"]]:
            for temperature in ("warm", "cold") if case["kind"] == "decode" else ("",):
                found.append(Measurement(case["case"], dtype, temperature))
        if case["case"] == "d4k_mha":
            found.append(Measurement("d4k_mha", "bf16", "cold", kv="i8"))
        if case["case"] == "p2k_gqa":
            found.append(Measurement("p2k_gqa", "f32", isa="avx2"))
    for shape in LINEAR_SHAPES:
        name = "linear_" + "x".join(map(str, shape))
        found += [Measurement(name, dtype, linear=shape) for dtype in ("f32", "bf16")]
    return [m for m in found
            if m.dtype in dtypes and (not patterns or any(fnmatch.fnmatch(m.case, pattern) for pattern in patterns))]
