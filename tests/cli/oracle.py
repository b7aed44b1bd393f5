"""Attention in fp64 from the contract's text, and how far a result may be from it."""

import dataclasses

import numpy as np

F32_EPS = 2.0**-23

# What rounding an output to the I/O type may change: relative to it, and where it is subnormal. A little over half a
# unit, for the rounding to f32 comes before.
ROUNDING = {"f32": (0, 0), "f16": (1.01 * 2.0**-11, 2.0**-25), "bf16": (1.01 * 2.0**-8, 2.0**-134)}


@dataclasses.dataclass
class Result:
    out: np.ndarray  # [batch, q_len, num_heads, head_dim_v]
    lse: np.ndarray  # [batch, num_heads, q_len]
    out_bound: np.ndarray  # of each element of out
    lse_bound: np.ndarray


def philox(counter_low, counter_high, key):
    """Philox4x32-10: four arrays of 32-bit words for an array of low counters."""
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter_low = np.asarray(counter_low, np.uint64)
    high = np.full_like(counter_low, counter_high)
    x = [counter_low & low32, counter_low >> shift, high & low32, high >> shift]
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        x = [(product1 >> shift) ^ x[1] ^ np.uint64(keys[0]), product1 & low32,
             (product0 >> shift) ^ x[3] ^ np.uint64(keys[1]), product0 & low32]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def kept_keys(problem, full, b, h, i):
    """One bool per position of k: whether dropout keeps it."""
    dropout = problem.get("dropout", {})
    p = float(np.float32(dropout.get("p", 0)))
    _, num_heads, q_len, kv_len = full
    e = np.uint64(((b * num_heads + h) * q_len + i) * kv_len) + np.arange(kv_len, dtype=np.uint64)
    words = np.stack(philox(e >> np.uint64(2), dropout.get("offset", 0), dropout.get("seed", 0)))
    word = np.take_along_axis(words, (e & np.uint64(3)).astype(np.int64)[None], 0)[0]
    return word >= round(p * 2**32), (1 / (1 - p) if p < 1 else 0)


def visible_keys(problem, arrays, b, h, i, position):
    """One bool per position of k: what query i of sequence b, head h, at `position`, sees."""
    j = np.arange(arrays["full"][3])
    visible = j < arrays["kv_lens"][b]
    if problem.get("causal", False):
        visible &= j <= position
    if problem.get("window_left", -1) >= 0:
        visible &= j >= position - problem["window_left"]
    if problem.get("window_right", -1) >= 0:
        visible &= j <= position + problem["window_right"]
    if "mask" in arrays:
        may_attend = np.broadcast_to(arrays["mask"], arrays["full"])[b, h, i] != 0
        visible &= may_attend != problem.get("mask_true_hides", False)
    if "bias" in arrays:
        visible &= np.broadcast_to(arrays["bias"], arrays["full"])[b, h, i] > -np.inf
    return visible


def logits_of(problem, arrays, q, k, b, h, i, position, visible):
    """The visible keys' logits, and what the rounding errors of f32 evaluations of them scale with."""
    scale = problem.get("scale")
    scale = 1 / np.sqrt(len(q)) if scale is None else scale
    intervals = (max(position, 0) + problem.get("temperature_shift", 0)) // problem.get("temperature_interval", 8192)
    scale = scale * (1 + float(np.float32(problem.get("temperature_growth", 0))) * np.log1p(intervals))
    scale = scale * float(arrays["temperature"][h] if "temperature" in arrays else 1)
    x = scale * (k @ q)
    # Partial sums of a dot product are larger than the sum: up to 4 standard deviations of a random walk's.
    size = np.maximum(np.abs(x), 4 * abs(scale) * np.sqrt(k**2 @ q**2))
    softcap = float(np.float32(problem.get("softcap", 0)))
    if softcap > 0:
        tanh = np.tanh(x / softcap)
        x = softcap * tanh
        size = (1 - tanh**2) * size + 4 * np.abs(x)
    if "bias" in arrays:
        x = x + np.broadcast_to(arrays["bias"], arrays["full"])[b, h, i, visible].astype(np.float64)
    if "alibi_slopes" in arrays:
        distance = np.flatnonzero(visible) - position
        if problem.get("alibi_symmetric", False):
            distance = -np.abs(distance)
        alibi = float(arrays["alibi_slopes"][h]) * distance
        x = x + alibi
        size = size + np.abs(alibi)
    return x, np.maximum(np.abs(x), size)


def attend(problem, q, k, v, **arrays):
    """q, k, v hold values, indexed [batch, position, head, dim], of max_q_len and max_kv_len positions. `arrays` are
    the other files of the case that tell of scores; q_lens and kv_lens are the lengths of each sequence."""
    batch, q_len, num_heads, head_dim = q.shape
    kv_len, num_kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    arrays = {"q_lens": [q_len] * batch, "kv_lens": [kv_len] * batch, **arrays}
    arrays["full"] = (batch, num_heads, q_len, kv_len)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    result = Result(np.zeros((batch, q_len, num_heads, head_dim_v)), np.full((batch, num_heads, q_len), -np.inf),
                    np.zeros((batch, q_len, num_heads, head_dim_v)), np.zeros((batch, num_heads, q_len)))
    int8 = problem.get("kv_dtype") == "i8"
    has_dropout = problem.get("dropout", {}).get("p", 0) > 0
    u_out, half_step = ROUNDING[problem.get("dtype", "f32")]
    # Kernels on dot products of bf16 round each weight before it meets v: independent errors, off by 6 standard
    # deviations in one of 10^9 sums.
    rounds_weights = problem.get("dtype") == "bf16" and not int8
    c = max(1, np.sqrt(head_dim) / 5) + int8  # roundings of a dot product are a random walk; a scale rounds once more
    for b, h in np.ndindex(batch, num_heads):
        g = h // (num_heads // num_kv_heads)
        sink = float(arrays["sink"][h]) if "sink" in arrays else -np.inf
        for i in range(arrays["q_lens"][b]):
            offset = {"top_left": 0, "bottom_right": int(arrays["kv_lens"][b]) - int(arrays["q_lens"][b])}.get(
                problem.get("position", "top_left"))
            position = i + (int(arrays["q_offsets"][b]) if offset is None else offset)
            visible = visible_keys(problem, arrays, b, h, i, position)
            result.lse[b, h, i] = sink
            if not visible.any():
                continue
            x, size = logits_of(problem, arrays, q[b, i, h], k[b, visible, g], b, h, i, position, visible)
            largest = max(x.max(), sink)
            weights = np.exp(x - largest)
            denominator = weights.sum() + np.exp(sink - largest)
            result.lse[b, h, i] = largest + np.log(denominator)
            if has_dropout:
                keeps, factor = kept_keys(problem, arrays["full"], b, h, i)
                weights = np.where(keeps[visible], weights * factor, 0)
            values = v[b, visible, g]
            result.out[b, i, h] = weights @ values / denominator
            # exp turns the rounding of a logit, c * S * 2^-24 and a few steps, into a relative error of its weight;
            # both sums of weights feel it, so out moves by at most twice that times Vmax. The 8 covers exp and the
            # sums; int8 rounds the product with a scale, dropout 1 - p, its inverse and the product with it.
            s, v_max = size.max(), np.abs(values).max() * (factor if has_dropout else 1)
            result.out_bound[b, i, h] = ((8 + int8 + 2 * has_dropout + c * s) * F32_EPS * v_max +
                                         u_out * np.abs(result.out[b, i, h]) + half_step)
            if rounds_weights:
                parts = weights[:, None] * values / denominator
                sizes, squares = np.abs(parts).sum(axis=0), (parts**2).sum(axis=0)
                result.out_bound[b, i, h] += u_out * np.minimum(sizes, 6 / np.sqrt(3) * np.sqrt(squares))
            result.lse_bound[b, h, i] = 8 * F32_EPS * max(1, abs(result.lse[b, h, i])) + c * s * F32_EPS
    return result
