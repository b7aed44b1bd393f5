"""A model of Hugging Face with Heed's attention; the model here is small and random."""
import torch
import transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, vocab_size=101, max_position_embeddings=128)
model = transformers.LlamaForCausalLM(config).eval()
prompt = torch.randint(1, 101, (2, 9))
options = dict(max_new_tokens=20, do_sample=False, pad_token_id=0)
expected = model.generate(prompt, **options)

# [register]
import heed.transformers

heed.transformers.register()
model.set_attn_implementation("heed")  # or from_pretrained(name, attn_implementation="heed")
tokens = model.generate(prompt, **options)
# [/register]
assert torch.equal(tokens, expected)
