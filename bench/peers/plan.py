"""What is measured, each in element types: cases of heed_bench, dense layers, attention weights, attention layers, an encoder."""
import dataclasses
import fnmatch

DTYPES = ("f32", "bf16", "f16")
SUITE_DTYPES = {**dict.fromkeys(("main", "rag", "logits", "layouts", "masks", "decode"), DTYPES), **dict.fromkeys(("small", "lengths"), ("f32", "bf16"))}
AVX2_CASES = ("p512_mha", "p2k_gqa", "p1k_d64_full", "bert_8x512", "p8k_gqa", "c256_4k_gqa", "add_11qk", "bool_11qk", "alibi",
              "softcap", "dropout")

# Cases in other layouts: the same in the default one.
DEFAULT_LAYOUT = {f"{short}_{layout}": case for short, case in (("p2k_gqa", "p2k_gqa"), ("p1k_d64", "p1k_d64_full"))
                  for layout in ("outside", "padded", "far")}

# Keys and values in pages: the same one after the other.
IN_A_ROW = {f"{case}_pages": case
            for case in ("d4k_mha", "d4k_gqa", "d4k_g8", "d4k_g16", "d2k_b16_gqa", "p2k_gqa", "c256_4k_gqa", "d96")}

# Masks that say what a flag says: the same with the flag.
NATIVE = {f"{name}_2k_mask": f"{flag}_2k"
          for name, flag in (("all", "all"), ("padding", "all"), ("causal", "causal"), ("window", "window"))}

LINEAR_SHAPES = [(2048, 4096, 4096), (2048, 1024, 3072), (10000, 384, 1536), (1000, 512, 160), (1000, 512, 16), (128, 4096, 4096),
                 (16, 4096, 4096), (16, 1024, 3072), (1, 4096, 4096)]  # rows, dim_in, dim_out

PROBS_LENS, PROBS_HEADS, PROBS_HEAD_DIM = (64, 256, 768, 1024), 12, 64


@dataclasses.dataclass(frozen=True)
class LayerShape:
    """A published layer at the sizes that its text runs it with. dim_k, dim_v: of all query heads."""
    form: str  # "scratch": separate projections with biases; "fused": one projection to q, k and v
    batch: int
    len: int
    dim_in: int
    dim_k: int
    dim_v: int
    dim_out: int
    num_heads: int
    num_kv_heads: int
    mask: str  # "", "causal" [len, len], "keys" [batch, num_heads, len, len] with hidden keys
    scale: float = None  # 1 / sqrt(head_dim)


LAYER_SHAPES = {
    "mqa_10x100": LayerShape("scratch", 10, 100, 512, 128, 128, 64, 8, 1, "causal"),
    "mha_24x100": LayerShape("scratch", 24, 100, 1024, 512, 888, 2048, 8, 8, "causal"),
    "gqa_3x2": LayerShape("scratch", 3, 2, 128, 128, 128, 128, 8, 4, "keys"),
    "fused_mha_768": LayerShape("fused", 1, 768, 512, 512, 512, 512, 8, 8, "", 1.0),
    "fused_mqa_768": LayerShape("fused", 1, 768, 512, 512, 512, 512, 8, 1, "", 1.0),
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    kind: str  # "attention", "linear", "probs", "layer", "encoder"
    case: str
    dtype: str
    temperature: str = ""  # of decode cases "warm" or "cold"
    kv: str = ""  # "i8": our keys and values, compared with our own of `dtype`
    isa: str = ""  # ours and the peers are held to it
    like: str = ""  # the case whose goal counts; "": its own
    shape: object = None  # of a kind that is not heed_bench's: its sizes
    variant: str = ""  # "causal" probs; a layer with "weights"; the demo's texts

    def title(self):
        return " ".join(filter(None, [self.case, self.temperature, self.dtype, self.kv, self.isa]))

    def request(self):
        """For heed_bench."""
        return {"case": self.case, "dtype": self.dtype, "kv": self.kv, "isa": self.isa, "cold": self.temperature == "cold"}


def of_cases(cases):
    found = []
    for case in cases:
        name = case["case"]
        for dtype in SUITE_DTYPES[case["suite"]]:
            for temperature in ("warm", "cold") if case["kind"] == "decode" else ("",):
                found.append(Measurement("attention", name, dtype, temperature))
        if name == "d4k_mha":
            found.append(Measurement("attention", name, "bf16", "cold", kv="i8"))
        if name in AVX2_CASES:
            found.append(Measurement("attention", name, "f32", isa="avx2"))
    return found


def of_shapes(shapes):
    """(heed_bench's case, the case whose goal it has, element types) each."""
    return [Measurement("attention", case["case"], dtype, temperature, like=like)
            for case, like, dtypes in shapes
            for dtype in dtypes
            for temperature in (("warm", "cold") if case["kind"] == "decode" else ("",))]


def of_other_kinds():
    found = []
    for shape in LINEAR_SHAPES:
        name = "linear_" + "x".join(map(str, shape))
        found += [Measurement("linear", name, dtype, shape=shape) for dtype in DTYPES]
    for length in PROBS_LENS:
        for variant in ("", "causal"):
            name = "_".join(filter(None, ["probs", str(length), variant]))
            found += [Measurement("probs", name, dtype, shape=length, variant=variant) for dtype in DTYPES]
    for layer, shape in LAYER_SHAPES.items():
        for variant in ("", "weights"):
            name = "_".join(filter(None, ["layer", layer, variant]))
            found += [Measurement("layer", name, dtype, shape=shape, variant=variant) for dtype in DTYPES]
    return found + [Measurement("encoder", f"encoder_minilm_{texts}", "f32", variant=texts) for texts in ("sentences", "passages")]


def selected(found, patterns, dtypes):
    """`patterns`: of names, none: all."""
    return [m for m in found
            if m.dtype in dtypes and (not patterns or any(fnmatch.fnmatch(m.case, pattern) for pattern in patterns))]


def references(measurement):
    """Our own measurements that ours is held against, by name: see goals.REFERENCES."""
    others = {"heed_default_layout": DEFAULT_LAYOUT, "heed_in_a_row": IN_A_ROW, "heed_native": NATIVE}
    found = {name: dataclasses.replace(measurement, case=cases[measurement.case])
             for name, cases in others.items() if measurement.case in cases}
    if measurement.dtype == "f16" and not measurement.temperature:
        found["heed_f32"] = dataclasses.replace(measurement, dtype="f32")
    return found
