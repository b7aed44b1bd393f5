"""Attention shapes that no case has: from the command line, or drawn at random, each with the case whose goal it has."""
import math
import random

from plan import DTYPES

ALIASES = {"heads": "num_heads", "kv_heads": "num_kv_heads", "alibi": "has_alibi", "dropout": "dropout_p",
           "temperature": "temperature_growth"}
REQUIRED = ("batch", "num_heads", "num_kv_heads", "q_len", "kv_len", "head_dim")
FLAGS = ("causal", "has_alibi")
FRACTIONS = ("softcap", "dropout_p", "temperature_growth")
NAMES = {"layout": ("tokens", "heads_outside", "padded", "far", "pages"),
         "mask": ("none", "bias_full", "bias_shared", "mask_shared", "mask_key_padding")}
SIZES = (*REQUIRED, "head_dim_v", "window_left", "temperature_interval")

LENGTHS = (256, 8192)  # the shortest and the longest that are drawn; those of the first two lines of the goals
MOST_GFLOP = 300  # of a drawn shape: half of p8k_gqa's
MOST_LOGITS = 1 << 28  # where peers keep them all, in several arrays of f32


class Unknown(ValueError):
    """A shape's text is not one; the message says why."""


def value_of(field, text):
    try:
        if field in FLAGS:
            return bool(int(text))
        if field in FRACTIONS:
            return float(text)
        if field in SIZES:
            return int(text)
    except ValueError:
        raise Unknown(f"{field} is {text!r}; it must be a number") from None
    if field in NAMES:
        if text not in NAMES[field]:
            raise Unknown(f"{field} is {text!r}; it must be one of {', '.join(NAMES[field])}")
        return text
    raise Unknown(f"a shape has no field {field!r}; it has dtype, {', '.join((*ALIASES, *SIZES, *FLAGS, *FRACTIONS, *NAMES))}")


def parsed(text):
    """(shape, element types) of "batch=1,q_len=512,kv_len=512,heads=8,kv_heads=2,head_dim=64,causal=1,dtype=bf16"."""
    shape, dtypes = {}, DTYPES
    for item in text.split(","):
        name, _, value = item.strip().partition("=")
        if name == "dtype":
            if value not in DTYPES:
                raise Unknown(f"dtype is {value!r}; it must be one of {', '.join(DTYPES)}")
            dtypes = (value,)
        else:
            field = ALIASES.get(name, name)
            shape[field] = value_of(field, value)
    if missing := [field for field in REQUIRED if field not in shape]:
        raise Unknown(f"a shape needs {', '.join(missing)}")
    if shape["num_heads"] % shape["num_kv_heads"]:
        raise Unknown("kv_heads must divide heads")
    if shape.get("mask", "none") != "none" and (shape.get("causal") or shape.get("has_alibi") or shape.get("window_left", -1) >= 0):
        raise Unknown("peers take no mask or bias with causal, ALiBi or a window")
    return {**shape, "case": name_of(shape)}, dtypes


def name_of(shape):
    """Such as 1x512x512_h8/2_d64_causal: what differs between shapes is in it."""
    name = f"{shape['batch']}x{shape['q_len']}x{shape['kv_len']}_h{shape['num_heads']}/{shape['num_kv_heads']}_d{shape['head_dim']}"
    if shape.get("head_dim_v", shape["head_dim"]) != shape["head_dim"]:
        name += f"/{shape['head_dim_v']}"
    for field, value in sorted(shape.items()):
        if field not in (*REQUIRED, "head_dim_v", "case") and value not in (False, "none", "tokens"):
            name += f"_{field}" if value is True else f"_{value}" if field in NAMES else f"_{field}{value:g}"
    return name


def like(shape):
    """The case that has the goal of the table's line for this shape; "" for one query, which has none."""
    if shape["q_len"] == 1:
        return ""
    if shape.get("mask", "none") != "none" or any(shape.get(field) for field in ("has_alibi", *FRACTIONS)):
        return "add_11qk"
    if shape["head_dim"] not in (64, 128) or shape.get("head_dim_v", shape["head_dim"]) != shape["head_dim"]:
        return "d72"
    if shape["q_len"] < shape["kv_len"]:
        return "c256_4k_gqa"
    if shape["head_dim"] == 64:
        return "bert_8x512" if shape["batch"] > 1 else "p1k_d64_full"
    return "p512_mha"


def small_enough(shape):
    logits = shape["batch"] * shape["num_heads"] * shape["q_len"] * shape["kv_len"]
    gflop = 2e-9 * logits * (shape["head_dim"] + shape.get("head_dim_v", shape["head_dim"]))
    return gflop <= MOST_GFLOP and (like(shape) != "add_11qk" or logits <= MOST_LOGITS)


def change_logits(draw, shape):
    """One of what the second line of the goals has. Peers take a mask or bias without causal only."""
    kind = draw.choice(("bias_shared", "mask_shared", "has_alibi", "softcap", "dropout_p"))
    if kind in NAMES["mask"]:
        shape.update(mask=kind, causal=False)
    elif kind == "has_alibi":
        shape.update(has_alibi=True, causal=True)
    else:
        shape[kind] = 30.0 if kind == "softcap" else 0.1


def drawn(draw):
    """A shape of one of the first three lines of the goals, in their ranges of lengths, heads, batches and head dims."""
    line = draw.choice(("plain", "logits", "head_dims"))
    num_kv_heads = draw.choice((1, 2, 4, 8, 12, 16, 32))
    shape = {"batch": draw.randint(1, 8), "num_kv_heads": num_kv_heads,
             "num_heads": num_kv_heads * draw.choice([group for group in (1, 2, 4, 8, 32) if num_kv_heads * group <= 32]),
             "q_len": round(math.exp(draw.uniform(*map(math.log, LENGTHS)))), "head_dim": draw.choice((64, 128)),
             "causal": draw.random() < 0.5}
    shape["kv_len"] = shape["q_len"]
    if line == "plain" and draw.random() < 0.25:
        shape.update(kv_len=draw.randint(shape["q_len"], LENGTHS[1]), causal=True)
    elif line == "logits":
        change_logits(draw, shape)
    elif line == "head_dims":
        shape["head_dim"], shape["head_dim_v"] = draw.choice(((72, 72), (80, 80), (96, 96), (256, 256), (192, 128), (64, 111)))
    return shape


def random_shapes(count, seed):
    """As parsed() gives them; a seed draws the same ones always, and a larger count the same ones first."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        shape = drawn(draw)
        if small_enough(shape):
            found.setdefault(name_of(shape), {**shape, "case": name_of(shape)})
    return list(found.values())
