"""Attention over NumPy's arrays: heads, masks, lengths, and why a kernel was chosen."""
# [call]
import heed
import numpy as np

random = np.random.default_rng(0)
q = random.standard_normal((2, 100, 32, 128), np.float32)  # [batch, len, heads, head_dim]
k, v = random.standard_normal((2, 2, 100, 8, 128), np.float32)  # grouped-query: 4 query heads for each of keys and values
out = heed.attention(q, k, v, causal=True)
out, lse = heed.attention(q, k, v, window_left=63, softcap=50.0, kv_lens=[100, 70], return_lse=True)
# [/call]
assert out.shape == q.shape and lse.shape == (2, 32, 100)

# [heads]
heads_first = np.ascontiguousarray(q.transpose(0, 2, 1, 3))  # [batch, heads, len, head_dim]: a view is enough
same = heed.attention(heads_first.transpose(0, 2, 1, 3), k, v, causal=True)
# [/heads]
assert np.array_equal(same, heed.attention(q, k, v, causal=True))

# [inspect]
print(heed.explain(q, k, v, causal=True))  # the kernel, and each other candidate with the reason why not
probs = heed.attention_probs(q, k, causal=True)  # [batch, heads, q_len, kv_len], for looking into a model
# [/inspect]
np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)

# [errors]
try:
    heed.attention(q, k, v, window_left=-2)
except heed.InvalidArgument as error:  # a ValueError; heed.Unsupported is a NotImplementedError
    print(error)
# [/errors]
