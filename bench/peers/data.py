"""The tensors of a case, [batch, heads, positions, head_dim], random, and what the result must be."""
import ml_dtypes
import numpy as np

STORED = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
LARGEST_ERROR = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}  # beyond it a result is wrong, not inexact


class Cannot(Exception):
    """A peer does not serve a case, as its documentation or itself says; the text says why."""


class Wrong(Exception):
    """A result is not what it must be."""


def stored(x, dtype):
    """float32 numbers rounded to a type; bf16 as uint16 bits."""
    rounded = np.ascontiguousarray(x, dtype=STORED[dtype])
    return rounded.view(np.uint16) if dtype == "bf16" else rounded


def widened(x):
    return (x.view(ml_dtypes.bfloat16) if x.dtype == np.uint16 else x).astype(np.float32)


def assert_near(found, exact, dtype):
    """Raises Wrong unless they agree to what the type holds, of the largest element."""
    found, exact = np.asarray(found, np.float64), np.asarray(exact, np.float64)
    error = np.abs(found - exact).max() / max(1e-30, np.abs(exact).max())
    if not error <= LARGEST_ERROR[dtype]:
        raise Wrong(f"wrong result: off by {error:.2g} of the largest")


def visible(case):
    """[q_len, kv_len] by causal and window, aligned bottom right."""
    position = np.arange(case["q_len"])[:, None] + case["kv_len"] - case["q_len"]
    key = np.arange(case["kv_len"])[None]
    seen = np.ones((case["q_len"], case["kv_len"]), bool)
    if case["causal"]:
        seen &= key <= position
    if case["window_left"] >= 0:
        seen &= key >= position - case["window_left"]
    return seen


def positions(case):
    """[q_len, 1], aligned bottom right."""
    return np.arange(case["q_len"], dtype=np.float32)[:, None] + case["kv_len"] - case["q_len"]


def alibi(case):
    """float32 [1, num_heads, q_len, kv_len]; -inf where causal or window hide."""
    slopes = np.exp2(-8 * np.arange(1, case["num_heads"] + 1, dtype=np.float32) / case["num_heads"])[:, None, None]
    bias = slopes * (np.arange(case["kv_len"], dtype=np.float32) - positions(case))
    return np.where(visible(case), bias, np.float32(-np.inf))[None]


def own_mask(case, random):
    """The case's mask (bool, true may attend) or bias (float32), or None."""
    shape = case["mask_shape"]
    if case["mask"] in ("bias_full", "bias_shared"):
        return random.standard_normal(shape, dtype=np.float32)
    if case["mask"] == "mask_shared":
        mask = random.random(shape) < 0.8
        mask[..., 0] = True
        return mask
    if case["mask"] == "mask_key_padding":
        return np.ascontiguousarray(np.broadcast_to(np.arange(case["kv_len"]) < case["kv_len"] * 3 // 4, shape))
    keys = np.broadcast_to(np.arange(case["kv_len"]), shape)
    behind = positions(case) - keys
    masks = {"mask_all": keys >= 0, "mask_left_padding": keys >= 5, "mask_causal": behind >= 0,
             "mask_window": (behind >= 0) & (behind < 256)}
    return masks.get(case["mask"])


class Data:
    """`copies` copies of k and v. What peers cannot say by a flag is in `mask`: windows, and causal where there are more
    keys than queries, for their causal is aligned otherwise."""

    def __init__(self, case, dtype, copies):
        random = np.random.default_rng(1234)
        batch, kv_heads, kv_len = case["batch"], case["num_kv_heads"], case["kv_len"]
        self.case, self.dtype = case, dtype
        self.q = self._numbers(random, batch, case["num_heads"], case["q_len"], case["head_dim"])
        k = self._numbers(random, batch, kv_heads, kv_len, case["head_dim"])
        v = self._numbers(random, batch, kv_heads, kv_len, case["head_dim_v"])
        self.k = [k] + [k.copy() for _ in range(copies - 1)]
        self.v = [v] + [v.copy() for _ in range(copies - 1)]
        self.mask = alibi(case) if case["has_alibi"] else own_mask(case, random)
        self.query_factor = None  # [q_len, 1], what queries are multiplied by in each call
        if case["temperature_growth"]:
            self.query_factor = 1 + case["temperature_growth"] * np.log1p(positions(case) // case["temperature_interval"])
        if case["has_alibi"]:
            pass
        elif case["window_left"] >= 0 or (case["causal"] and case["q_len"] != kv_len):
            assert self.mask is None  # no case has both
            self.mask = np.where(visible(case), np.float32(0), np.float32(-np.inf))[None, None]
        self.causal = case["causal"] and self.mask is None
        self.out_shape = (batch, case["num_heads"], case["q_len"], case["head_dim_v"])
        self.group_size = case["num_heads"] // kv_heads
        self._rows = self._reference()

    def _numbers(self, random, *shape):
        return stored(random.standard_normal(shape, dtype=np.float32), self.dtype)

    def _reference(self):
        """fp64 attention of a few heads and rows: (batch, head, rows, out)."""
        random, case, rows = np.random.default_rng(5), self.case, []
        for _ in range(4):
            b, h = int(random.integers(case["batch"])), int(random.integers(case["num_heads"]))
            at = np.unique([0, case["q_len"] - 1, *random.integers(0, case["q_len"], 14)])
            k, v = (widened(x[0][b, h // self.group_size]).astype(np.float64) for x in (self.k, self.v))
            logits = widened(self.q[b, h, at]).astype(np.float64) @ k.T / np.sqrt(case["head_dim"])
            if self.query_factor is not None:
                logits *= self.query_factor[at]
            if case["softcap"]:
                logits = case["softcap"] * np.tanh(logits / case["softcap"])
            if self.mask is not None:
                mask = self.mask[b % self.mask.shape[0], h % self.mask.shape[1], at]
                logits = np.where(mask, logits, -np.inf) if mask.dtype == bool else logits + mask
            logits = np.where(visible(case)[at], logits, -np.inf)
            weights = np.exp(logits - logits.max(1, keepdims=True))
            rows.append((b, h, at, weights @ v / weights.sum(1, keepdims=True)))
        return rows

    def refuse(self, peer, *fields):
        """Raises Cannot where the case has one of these."""
        if asked := [field for field in fields if self.case[field]]:
            raise Cannot(f"{peer} has no {', '.join(asked)}")

    def check(self, out):
        """Raises Wrong when a peer's out is not attention. Dropped weights are random."""
        if self.case["dropout_p"]:
            return
        out = out.reshape(self.out_shape)
        error = max(np.abs(out[b, h, at] - exact).max() for b, h, at, exact in self._rows)
        if not error <= LARGEST_ERROR[self.dtype]:
            raise Wrong(f"wrong result: off by {error:.2g}")
