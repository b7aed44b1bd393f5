"""Attention in fp64 from the contract's text, and how far an f32 result may lie from it."""

import dataclasses

import numpy as np

F32_EPS = 2.0**-23


@dataclasses.dataclass
class Result:
    out: np.ndarray  # [batch, q_len, num_heads, head_dim_v]
    lse: np.ndarray  # [batch, num_heads, q_len]
    out_bound: np.ndarray  # of each element of out
    lse_bound: np.ndarray


def visible_keys(problem, arrays, b, h, i, q_len, kv_len):
    """One bool per position of k: what query i of sequence b, head h sees."""
    j = np.arange(kv_len)
    own_kv_len = int(arrays["kv_lens"][b]) if "kv_lens" in arrays else kv_len
    offset = {"top_left": 0, "bottom_right": own_kv_len - q_len}.get(problem.get("position", "top_left"))
    if offset is None:
        offset = int(arrays["q_offsets"][b])
    p = i + offset
    visible = j < own_kv_len
    if problem.get("causal", False):
        visible &= j <= p
    if problem.get("window_left", -1) >= 0:
        visible &= j >= p - problem["window_left"]
    if problem.get("window_right", -1) >= 0:
        visible &= j <= p + problem["window_right"]
    if "mask" in arrays:
        may_attend = np.broadcast_to(arrays["mask"], arrays["full"])[b, h, i] != 0
        visible &= may_attend != problem.get("mask_true_hides", False)
    if "bias" in arrays:
        visible &= np.broadcast_to(arrays["bias"], arrays["full"])[b, h, i] > -np.inf
    return visible


def attend(problem, q, k, v, **arrays):
    """q, k, v are indexed [batch, position, head, dim]; arrays are the other files of the case."""
    batch, q_len, num_heads, head_dim = q.shape
    kv_len, num_kv_heads, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
    arrays["full"] = (batch, num_heads, q_len, kv_len)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scale = problem.get("scale")
    scale = 1 / np.sqrt(head_dim) if scale is None else scale
    result = Result(np.zeros((batch, q_len, num_heads, head_dim_v)), np.full((batch, num_heads, q_len), -np.inf),
                    np.zeros((batch, q_len, num_heads, head_dim_v)), np.zeros((batch, num_heads, q_len)))
    for b, h, i in np.ndindex(batch, num_heads, q_len):
        visible = visible_keys(problem, arrays, b, h, i, q_len, kv_len)
        if not visible.any():
            continue
        g = h // (num_heads // num_kv_heads)
        logits = scale * (k[b, visible, g] @ q[b, i, h])
        if "bias" in arrays:
            logits += np.broadcast_to(arrays["bias"], arrays["full"])[b, h, i, visible].astype(np.float64)
        weights = np.exp(logits - logits.max())
        values = v[b, visible, g]
        result.out[b, i, h] = weights @ values / weights.sum()
        result.lse[b, h, i] = logits.max() + np.log(weights.sum())
        # exp turns the rounding of a logit, S * 2^-24 and a few steps, into a relative error of its weight; both
        # sums of weights feel it, so out moves by at most twice that times Vmax. The 8 covers exp and the sums.
        s, v_max = np.abs(logits).max(), np.abs(values).max()
        result.out_bound[b, i, h] = (8 + s) * F32_EPS * v_max
        result.lse_bound[b, h, i] = 8 * F32_EPS * max(1, abs(result.lse[b, h, i])) + s * F32_EPS
    return result
