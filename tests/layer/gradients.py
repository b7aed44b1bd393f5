"""Gradients of the attention layers, from the formulas of reference.py in numpy float64: gradients.py OUT_DIR.

For a loss sum(dy * y) and every floating input NAME the slope along random directions u, by central differences in steps
too short to meet an edge of a clipping: NAME_directions [3, ...] and NAME_slopes [3]. A gradient g is right where g . u is
the slope.
Independent of Heed: nothing here calls it.
"""
import pathlib
import sys

import numpy as np
import reference as ref

DIRECTIONS, STEP = 3, 1e-7


def mqa_scratch(rng):
    w = ref.scratch_inputs(rng, 2, 37, 48, 64, 40, 56, 4, 1)
    w["mask"] = np.triu(np.ones((37, 37), np.uint8), 1)
    return w, lambda w: ref.from_scratch(w, 4, 1)["y"]


def mha_scratch(rng):
    w = ref.scratch_inputs(rng, 3, 20, 64, 32, 48, 40, 4, 4)
    w["mask"] = np.triu(np.ones((20, 20), np.uint8), 1)
    w["key_padding"] = (np.arange(20)[None] >= np.array([20, 13, 7])[:, None]).astype(np.uint8)
    return w, lambda w: ref.from_scratch(w, 4, 4)["y"]


def fused_gqa(rng):
    w = ref.fused_inputs(rng, 2, True, d_model=64, n=4, batch=3, seq=21)
    return w, lambda w: ref.fused(w, 64, 4, 2, 1.0, 1 / 4, (21,))["y0"]


def fused_mqa(rng):
    w = ref.fused_inputs(rng, 1, False, d_model=64, n=4, batch=3, seq=21)
    return w, lambda w: ref.fused(w, 64, 4, 1, 1.5, 1.0, (21,))["y0"]


def paper_mha(rng):
    return ref.paper_inputs(rng, False, b=2, d=48, h=3), lambda w: ref.paper_batched(w)["y"]


def paper_mqa(rng):
    return ref.paper_inputs(rng, True, b=2, d=48, h=3), lambda w: ref.paper_batched(w)["y"]


def incremental_mqa(rng):
    w = ref.paper_inputs(rng, True, b=2, n=19, d=48, h=3)
    return {name: w[name] for name in ("X", "P_q", "P_k", "P_v", "P_o")}, lambda w: ref.incremental(w)["y"]


def gqa_dropout(rng):
    mask = rng.random((2, 1, 40, 40)) < 0.8
    mask[..., 0] = True
    return ref.gqa_inputs(rng, 2, 40, 64, 4, 2, mask), lambda w: ref.gqa_dropout(w, 4, 2, 0.25)["y_train"]


def rotated(x, cos, sin):  # [b, n, s, d], half-split pairs of the first elements
    half = cos.shape[1]
    a, b = x[..., :half], x[..., half:2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)


def modern(w, n, kv):
    """Norms of heads, RoPE, a window, sinks, softcap; key lengths."""
    q, k, v = (ref.heads(w["x"] @ w[f"w{name}"].T + w[f"b{name}"], count) for name, count in (("q", n), ("k", kv), ("v", kv)))
    q = rotated(ref.layer_norm(q, w["q_norm_weight"], w["q_norm_bias"]), w["rope_cos"], w["rope_sin"])
    k = rotated(ref.layer_norm(k, w["k_norm_weight"], w["k_norm_bias"]), w["rope_cos"], w["rope_sin"])
    k, v = ref.repeated(k, n), ref.repeated(v, n)
    logits = 5 * np.tanh(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]) / 5)
    distance = np.arange(q.shape[2])[:, None] - np.arange(k.shape[2])[None]
    logits = ref.hidden(logits, (distance < 0) | (distance > 6))
    weights = np.exp(logits)
    probs = weights / (weights.sum(-1, keepdims=True) + np.exp(w["sink"])[:, None, None])
    valid = np.arange(q.shape[2])[None] < w["q_lens"][:, None]  # causal: no valid query sees a later key
    return (ref.joined(probs @ v) @ w["wo"].T + w["bo"]) * valid[..., None]


def modern_gqa(rng):
    w = ref.scratch_inputs(rng, 3, 23, 40, 64, 64, 40, 4, 2)
    angles = np.arange(23)[:, None] * 10.0 ** -np.arange(4)[None]
    w.update(rope_cos=np.cos(angles), rope_sin=np.sin(angles), sink=rng.standard_normal(4), q_lens=np.array([23, 0, 11], np.int32))
    for name in "qk":
        w[f"{name}_norm_weight"], w[f"{name}_norm_bias"] = 1 + 0.1 * rng.standard_normal(16), 0.1 * rng.standard_normal(16)
    return w, lambda w: modern(w, 4, 2)


FORMS = (mqa_scratch, mha_scratch, fused_gqa, fused_mqa, paper_mha, paper_mqa, incremental_mqa, gqa_dropout, modern_gqa)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, form in enumerate(FORMS):
        rng = np.random.default_rng(seed)
        inputs, compute = form(rng)
        inputs = ref.in_type(inputs, np.float32)
        exact = ref.in_type(inputs, np.float64)
        tensors = dict(inputs)
        dy = rng.standard_normal(compute(exact).shape).astype(np.float32)
        tensors["dy"] = dy
        for name, value in exact.items():
            if value.dtype.kind != "f":
                continue
            directions = rng.standard_normal((DIRECTIONS, *value.shape)).astype(np.float32)
            slopes = []
            for direction in directions:
                ends = [(compute({**exact, name: value + side * STEP * direction}) * dy).sum() for side in (1, -1)]
                slopes.append((ends[0] - ends[1]) / (2 * STEP))
            tensors[f"{name}_directions"], tensors[f"{name}_slopes"] = directions, np.array(slopes, np.float32)
        ref.write(folder / f"{form.__name__}.safetensors", tensors)


if __name__ == "__main__":
    main()
