"""A layer from a safetensors file, with a cache; and the operations that it is made of."""
import sys

import numpy as np

import heed

path = sys.argv[1] if len(sys.argv) > 1 else "model.safetensors"
random = np.random.default_rng(0)

# [layer]
names = {"wq": "wq", "wk": "wk", "wv": "wv", "wo": "wo"}  # heed_layer_weights to the names in the file
layer = heed.Layer.from_safetensors(path, names, dim_in=1024, num_heads=8, num_kv_heads=1, causal=True,
                                    max_batch=4, max_q_len=64, max_kv_len=512)
cache = layer.make_cache(batch=4, capacity=512, page_size=16)
y = layer(random.standard_normal((4, 64, 1024), np.float32), cache=cache)  # the prompt
y = layer(random.standard_normal((4, 1, 1024), np.float32), cache=cache)  # one more token of each sequence
# [/layer]
assert y.shape == (4, 1, 1024) and cache.kv_lens == [65] * 4

# [operations]
weights = heed.LinearWeights(random.standard_normal((256, 1024), np.float32))
q = heed.linear(random.standard_normal((4, 10, 1024), np.float32), weights).reshape(4, 10, 4, 64)
angles = np.arange(512, dtype=np.float32)[:, None] / 10000.0 ** (np.arange(32, dtype=np.float32) / 32)
positions = np.tile(np.arange(10, dtype=np.int32), (4, 1))
q = heed.rope(q, np.cos(angles), np.sin(angles), positions)

left = heed.attention(q, q[:, :6], q[:, :6], return_lse=True)  # attention over parts of the keys
right = heed.attention(q, q[:, 6:], q[:, 6:], return_lse=True)
out = heed.merge_states([left[0], right[0]], [left[1], right[1]])  # is attention over all
# [/operations]
np.testing.assert_allclose(out, heed.attention(q, q, q), atol=1e-5)
