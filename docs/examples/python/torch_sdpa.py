"""heed.torch in place of torch.nn.functional.scaled_dot_product_attention, for inference."""
import torch

# [call]
import heed.torch

q, k, v = (torch.randn(2, heads, 100, 64) for heads in (8, 2, 2))  # [batch, heads, len, head_dim]
with torch.inference_mode():
    out = heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
# [/call]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
torch.testing.assert_close(out, expected)
