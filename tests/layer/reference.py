"""The attention layers of the forms tests, from their formulas in numpy float64: reference.py OUT_DIR.

Writes a safetensors file per form: inputs and weights as float32, what a layer must give as float64 rounded to float32,
and for each result NAME two numbers NAME_error: the root mean square and the largest error of the same formulas in
float32. Independent of Heed: nothing here calls it.
"""
import json
import pathlib
import sys

import numpy as np

NAMES = {"float32": "F32", "uint8": "U8", "int32": "I32"}


def write(path, tensors):
    header, offset = {}, 0
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))  # each aligned to its elements
    for name, array in tensors.items():
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(x, n):  # [b, s, n * d] -> [b, n, s, d]
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(0, 2, 1, 3)


def joined(x):  # [b, n, s, d] -> [b, s, n * d]
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def repeated(x, n):  # kv heads to query heads: repeat_interleave
    return np.repeat(x, n // x.shape[1], axis=1)


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + x.dtype.type(1e-5)) * weight + bias


def hidden(logits, mask):
    return np.where(mask, logits.dtype.type(-np.inf), logits)


def attention(q, k, v, scale, modify=lambda logits: logits, keep=None):
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    probs = softmax(modify(q @ k.transpose(0, 1, 3, 2) * q.dtype.type(scale)))
    kept = probs if keep is None else probs * keep.astype(q.dtype)
    return kept @ v, probs


# ---- Multi-query and multi-head attention from scratch: separate projections with biases, mask 1 = masked.


def from_scratch(w, num_heads, num_kv_heads):
    q = heads(w["x"] @ w["wq"].T + w["bq"], num_heads)
    k = heads(w["x"] @ w["wk"].T + w["bk"], num_kv_heads)
    v = heads(w["x"] @ w["wv"].T + w["bv"], num_kv_heads)

    def masked(logits):
        if "mask" in w:
            logits = hidden(logits, w["mask"][None, None] == 1)
        if "key_padding" in w:
            logits = hidden(logits, w["key_padding"][:, None, None] == 1)
        return logits

    out, _ = attention(q, k, v, 1 / np.sqrt(q.shape[-1]), masked)
    return {"y": joined(out) @ w["wo"].T + w["bo"]}


def scratch_inputs(rng, batch, seq, dim_in, dim_k, dim_v, dim_o, n, kv):
    def weight(rows, columns):
        return rng.uniform(-1, 1, (rows, columns)) / np.sqrt(columns)

    def bias(rows, columns):
        return rng.uniform(-1, 1, rows) / np.sqrt(columns)

    k, v = dim_k // n * kv, dim_v // n * kv
    return {"x": rng.standard_normal((batch, seq, dim_in)),
            "wq": weight(dim_k, dim_in), "wk": weight(k, dim_in), "wv": weight(v, dim_in), "wo": weight(dim_o, dim_v),
            "bq": bias(dim_k, dim_in), "bk": bias(k, dim_in), "bv": bias(v, dim_in), "bo": bias(dim_o, dim_v)}


def mqa_scratch(rng):
    w = scratch_inputs(rng, 10, 100, 512, 128, 128, 64, 8, 1)
    w["mask"] = np.triu(np.ones((100, 100), np.uint8), 1)
    return w, lambda w: from_scratch(w, 8, 1)


def mqa_scratch_narrow_v(rng):
    w = scratch_inputs(rng, 3, 37, 96, 160, 64, 72, 8, 1)
    w["mask"] = np.triu(np.ones((37, 37), np.uint8), 1)
    return w, lambda w: from_scratch(w, 8, 1)


def mha_scratch(rng):
    w = scratch_inputs(rng, 24, 100, 1024, 512, 888, 2048, 8, 8)
    w["mask"] = np.triu(np.ones((100, 100), np.uint8), 1)
    lengths = rng.integers(60, 101, 24)
    w["key_padding"] = (np.arange(100)[None] >= lengths[:, None]).astype(np.uint8)
    return w, lambda w: from_scratch(w, 8, 8)


# ---- Fused QKV layers of training code: past keys and values, bias, key padding (1 = valid), clip, norms, weights.


def fused(w, d_model, n, kv, clip, scale, step_lens):
    d = d_model // n
    past_k = past_v = None
    results, first = {}, 0
    for step, length in enumerate(step_lens):
        qkv = np.clip(w["x"][:, first:first + length] @ w["wqkv"].T + w["bqkv"], -clip, clip)
        q, k, v = np.split(qkv, [d_model, d_model + kv * d], axis=2)
        if "q_norm_weight" in w:
            q = layer_norm(q, w["q_norm_weight"], w["q_norm_bias"])
            k = layer_norm(k, w["k_norm_weight"], w["k_norm_bias"])
        q, k, v = heads(q, n), heads(k, kv), heads(v, kv)
        past_k = k if past_k is None else np.concatenate([past_k, k], 2)
        past_v = v if past_v is None else np.concatenate([past_v, v], 2)
        first += length

        def modified(logits):
            logits = logits + w["bias"][..., :first]
            logits = hidden(logits, w["key_padding"][:, None, None, :first] == 0)
            behind = np.arange(first)[None] > np.arange(first - length, first)[:, None]
            return hidden(logits, behind)

        out, probs = attention(q, past_k, past_v, scale, modified)
        results[f"y{step}"] = joined(out) @ w["wo"].T + w["bo"]
        results[f"probs{step}"] = probs
    return {**results, "past_k": past_k, "past_v": past_v}


def fused_inputs(rng, kv, norm, d_model=128, n=8, batch=3, seq=41):
    d = d_model // n
    columns = d_model + 2 * kv * d
    w = {"x": rng.standard_normal((batch, seq, d_model)),
         "wqkv": rng.standard_normal((columns, d_model)) / np.sqrt(d_model), "bqkv": 0.1 * rng.standard_normal(columns),
         "wo": rng.standard_normal((d_model, d_model)) / np.sqrt(d_model), "bo": 0.1 * rng.standard_normal(d_model),
         "bias": rng.standard_normal((1, n, 1, seq))}
    w["key_padding"] = (np.arange(seq)[None] >= np.array([0, 4, 11])[:, None]).astype(np.uint8)
    w["key_padding"][:, 0] = 1  # every query sees a key
    if norm:
        for name, size in ("q", d_model), ("k", kv * d):
            w[f"{name}_norm_weight"] = 1 + 0.1 * rng.standard_normal(size)
            w[f"{name}_norm_bias"] = 0.1 * rng.standard_normal(size)
    return w


STEP_LENS = (36, 1, 3, 1)


def fused_mha(rng):  # the toy function's scale: none
    return fused_inputs(rng, 8, False), lambda w: fused(w, 128, 8, 8, 2.0, 1.0, STEP_LENS)


def fused_mqa(rng):
    return fused_inputs(rng, 1, False), lambda w: fused(w, 128, 8, 1, 1.5, 1 / 4, STEP_LENS)


def fused_gqa(rng):
    return fused_inputs(rng, 2, True), lambda w: fused(w, 128, 8, 2, 1.0, 1 / 4, STEP_LENS)


# ---- The functions of the multi-query attention paper, arXiv 1911.02150: einsum layouts, scale 1.


def paper_batched(w):
    kv = "hdk" if w["P_k"].ndim == 3 else "dk"
    out = kv.replace("dk", "").replace("h", "h")
    Q = np.einsum("bnd,hdk->bhnk", w["X"], w["P_q"])
    K = np.einsum(f"bmd,{kv}->b{out}mk", w["M"], w["P_k"])
    V = np.einsum(f"bmd,{kv.replace('k', 'v')}->b{out}mv", w["M"], w["P_v"])
    weights = softmax(np.einsum(f"bhnk,b{out}mk->bhnm", Q, K) + w["bias"])
    O = np.einsum(f"bhnm,b{out}mv->bhnv", weights, V)
    return {"y": np.einsum("bhnv,hdv->bnd", O, w["P_o"])}


def paper_inputs(rng, shared, b=4, n=9, m=23, d=96, h=6, k=16, v=24):
    heads_of_kv = () if shared else (h,)
    return {"X": rng.standard_normal((b, n, d)), "M": rng.standard_normal((b, m, d)),
            "bias": rng.standard_normal((b, h, n, m)),
            "P_q": rng.standard_normal((h, d, k)) / np.sqrt(d) / 2, "P_k": rng.standard_normal((*heads_of_kv, d, k)) / np.sqrt(d),
            "P_v": rng.standard_normal((*heads_of_kv, d, v)) / np.sqrt(d), "P_o": rng.standard_normal((h, d, v)) / np.sqrt(h * v)}


def paper_single(rng):
    w = paper_inputs(rng, False, b=1, n=1, m=31)
    w["bias"] = np.zeros((1, 6, 1, 31))
    return w, paper_batched


def paper_mha(rng):
    return paper_inputs(rng, False), paper_batched


def paper_mqa(rng):
    return paper_inputs(rng, True), paper_batched


def incremental(w):
    """One token after the other, as the paper writes it; equals batched causal self attention."""
    multi = w["P_k"].ndim == 3
    past_k, past_v, ys = [], [], []
    for x in w["X"].transpose(1, 0, 2):
        q = np.einsum("bd,hdk->bhk", x, w["P_q"])
        past_k.append(np.einsum("bd,hdk->bhk" if multi else "bd,dk->bk", x, w["P_k"]))
        past_v.append(np.einsum("bd,hdv->bhv" if multi else "bd,dv->bv", x, w["P_v"]))
        K, V = np.stack(past_k, -2), np.stack(past_v, -2)
        weights = softmax(np.einsum("bhk,bhmk->bhm" if multi else "bhk,bmk->bhm", q, K))
        o = np.einsum("bhm,bhmv->bhv" if multi else "bhm,bmv->bhv", weights, V)
        ys.append(np.einsum("bhv,hdv->bd", o, w["P_o"]))
    return {"y": np.stack(ys, 1)}


def incremental_inputs(rng, shared):
    w = paper_inputs(rng, shared, b=3, n=128)
    return {name: w[name] for name in ("X", "P_q", "P_k", "P_v", "P_o")}


def incremental_mha(rng):
    return incremental_inputs(rng, False), incremental


def incremental_mqa(rng):
    return incremental_inputs(rng, True), incremental


# ---- Grouped-query attention with dropout: mask 0 = masked, repeat_interleave, dropout on the probabilities.


def philox_kept(p, seed, offset, shape):
    """1 where dropout keeps: Philox4x32-10, Salmon et al. 2011."""
    e = np.arange(np.prod(shape), dtype=np.uint64)
    mask = np.uint64(0xffffffff)
    low, high = e >> np.uint64(2), np.full_like(e, offset)
    c = [low & mask, low >> np.uint64(32), high & mask, high >> np.uint64(32)]
    key = [np.uint64(seed & 0xffffffff), np.uint64(seed >> 32)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ key[0], b & mask, (a >> np.uint64(32)) ^ c[3] ^ key[1], a & mask]
        key = [(key[0] + np.uint64(0x9E3779B9)) & mask, (key[1] + np.uint64(0xBB67AE85)) & mask]
    word = np.choose((e & np.uint64(3)).astype(np.int64), c)
    return (word >= np.uint64(round(p * 2**32))).reshape(shape)


def gqa_dropout(w, n, kv, p):
    q, k, v = heads(w["x"] @ w["wq"].T + w["bq"], n), heads(w["x"] @ w["wk"].T + w["bk"], kv), heads(w["x"] @ w["wv"].T + w["bv"], kv)
    scale = 1 / np.sqrt(q.shape[-1])
    shape = (q.shape[0], n, q.shape[2], q.shape[2])
    keep = philox_kept(float(np.float32(p)), 1234567890123, 77, shape) / (1 - np.float64(np.float32(p)))
    results = {}
    for name, kept in ("y_eval", None), ("y_train", keep):
        out, _ = attention(q, k, v, scale, lambda logits: hidden(logits, w["mask"] == 0), kept)
        results[name] = joined(out) @ w["wo"].T + w["bo"]
    return results


def gqa_inputs(rng, batch, seq, hidden_dim, n, kv, mask):
    w = scratch_inputs(rng, batch, seq, hidden_dim, hidden_dim, hidden_dim, hidden_dim, n, kv)
    return {**w, "mask": mask.astype(np.uint8)}


def gqa_8_4(rng):
    mask = np.array([[0, 1], [1, 1], [1, 0]])[:, None, None]
    return gqa_inputs(rng, 3, 2, 128, 8, 4, mask), lambda w: gqa_dropout(w, 8, 4, 0.1)


def gqa_large(rng):
    mask = rng.random((4, 1, 200, 200)) < 0.8
    mask[..., 0] = True
    return gqa_inputs(rng, 4, 200, 512, 16, 4, mask), lambda w: gqa_dropout(w, 16, 4, 0.25)


def gqa_as_mha(rng):
    return gqa_inputs(rng, 2, 33, 128, 8, 8, np.ones((2, 1, 1, 33))), lambda w: gqa_dropout(w, 8, 8, 0.1)


def gqa_as_mqa(rng):
    return gqa_inputs(rng, 2, 33, 128, 8, 1, np.ones((2, 1, 1, 33))), lambda w: gqa_dropout(w, 8, 1, 0.1)


FORMS = (mqa_scratch, mqa_scratch_narrow_v, mha_scratch, fused_mha, fused_mqa, fused_gqa, paper_single, paper_mha, paper_mqa,
         incremental_mha, incremental_mqa, gqa_8_4, gqa_large, gqa_as_mha, gqa_as_mqa)


def in_type(w, dtype):
    return {name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in w.items()}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, form in enumerate(FORMS):
        inputs, compute = form(np.random.default_rng(seed))
        inputs = in_type(inputs, np.float32)
        exact, single = compute(in_type(inputs, np.float64)), compute(inputs)
        tensors = dict(inputs)
        for name, value in exact.items():
            error = single[name] - value
            tensors[name] = value.astype(np.float32)
            tensors[f"{name}_error"] = np.array([np.sqrt((error**2).mean()), np.abs(error).max()], np.float32)
        write(folder / f"{form.__name__}.safetensors", tensors)


if __name__ == "__main__":
    main()
