"""Decoding over a cache in pages whose keys and values are int8."""
import numpy as np

import heed

random = np.random.default_rng(0)
batch, heads, kv_heads, head_dim = 4, 8, 2, 64


def projected(tokens, num_heads):  # what a model would compute
    return random.standard_normal((batch, tokens, num_heads, head_dim), np.float32)


# [loop]
cache = heed.KVCache(batch, 1024, kv_heads, head_dim, page_size=16, dtype="int8")
cache.append(projected(50, kv_heads), projected(50, kv_heads))  # the prompt
out = cache.attention(projected(50, heads), causal=True)
for step in range(20):
    cache.append(projected(1, kv_heads), projected(1, kv_heads))
    out = cache.attention(projected(1, heads), causal=True)
cache.fork(0, 3)  # sequence 3 goes on as sequence 0; pages are shared until one of them writes
cache.truncate(1, 60)  # the last ten tokens of sequence 1 are forgotten
# [/loop]
assert cache.kv_lens.tolist() == [70, 60, 70, 70] and np.isfinite(out).all()
