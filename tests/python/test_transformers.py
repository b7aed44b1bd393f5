"""attn_implementation="heed" in models of Hugging Face with random weights, against "eager"; needs torch and transformers."""

import copy
import unittest

import torch
import transformers
from transformers.masking_utils import sdpa_mask

import heed
import heed.transformers
from support import Test

heed.transformers.register()
torch.manual_seed(0)


def exact_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, position_bias=None,
                    **_options):
    """The formula, in the type of its inputs: eager's masks of the type's lowest number overflow in float64."""
    groups = query.shape[1] // key.shape[1]
    logits = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    logits = logits if position_bias is None else logits + position_bias
    if attention_mask is None and module.is_causal and query.shape[2] > 1:
        attention_mask = torch.ones(logits.shape[2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        logits = logits.masked_fill(~attention_mask, -torch.inf)
    if s_aux is not None:
        sinks = s_aux[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sinks], -1)
    probs = torch.softmax(logits, -1).nan_to_num(0)[..., :key.shape[2]]
    return (probs @ value.repeat_interleave(groups, 1)).transpose(1, 2), None


transformers.AttentionInterface.register("exact", exact_attention)
transformers.AttentionMaskInterface.register("exact", sdpa_mask)


def llama(**options):
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=101, max_position_embeddings=128, **options)
    return transformers.LlamaForCausalLM(config).eval()


def bert():
    config = transformers.BertConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                     vocab_size=101, max_position_embeddings=128)
    return transformers.BertModel(config).eval()


def t5():  # a bias of each layer
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=101)
    model = transformers.T5EncoderModel(config).eval()
    torch.nn.init.normal_(model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    return model


def mistral():  # a sliding window
    config = transformers.MistralConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, vocab_size=101, max_position_embeddings=128, sliding_window=5)
    return transformers.MistralForCausalLM(config).eval()


def gemma2():  # softcap, and a window in every other layer
    config = transformers.Gemma2Config(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                       num_key_value_heads=2, head_dim=16, vocab_size=101, max_position_embeddings=128,
                                       sliding_window=5, attn_logit_softcapping=0.5, query_pre_attn_scalar=16)
    return transformers.Gemma2ForCausalLM(config).eval()


def gpt_oss():  # sinks
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                                       num_key_value_heads=2, head_dim=16, vocab_size=101, max_position_embeddings=128,
                                       sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
                                       experts_implementation="eager")
    model = transformers.GptOssForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


IDS = torch.randint(1, 101, (3, 19), generator=torch.Generator().manual_seed(1))
LEFT_PADDING = (torch.arange(19) >= torch.tensor([[0], [4], [11]])).long()


def count_calls(function):
    """What function gives, and how many attentions Heed computed meanwhile."""
    calls, original = [], heed.torch._attention

    def counted(*arguments, **options):
        calls.append(1)
        return original(*arguments, **options)

    heed.torch._attention = counted
    try:
        return function(), len(calls)
    finally:
        heed.torch._attention = original


class Models(Test):
    @torch.no_grad()
    def assert_as_eager(self, model, rows=None, **inputs):
        """The last hidden states: as near to exact ones in float64 as twice eager's in float32."""
        hidden = {}
        for name, dtype, implementation in (("exact", torch.float64, "exact"), ("eager", torch.float32, "eager"),
                                            ("heed", torch.float32, "heed")):
            copied = copy.deepcopy(model).to(dtype)
            copied.set_attn_implementation(implementation)
            outputs, calls = count_calls(lambda run=copied: run(**inputs, output_hidden_states=True))
            self.assertEqual(calls, 2 if name == "heed" else 0)
            last = outputs.hidden_states[-1].double()
            hidden[name] = last if rows is None else last[rows]
        error = (hidden["heed"] - hidden["exact"]).abs().max()
        self.assertLessEqual(error, 2 * (hidden["eager"] - hidden["exact"]).abs().max())

    def test_prefill(self):
        for make in (llama, bert, t5, mistral, gemma2, gpt_oss):
            with self.subTest(model=make.__name__):
                model = make()
                self.assert_as_eager(model, input_ids=IDS)
                self.assert_as_eager(model, LEFT_PADDING.bool(), input_ids=IDS, attention_mask=LEFT_PADDING)

    def test_generation(self):
        for make in (llama, mistral, gemma2, gpt_oss):
            with self.subTest(model=make.__name__):
                model = make()
                tokens = {}
                for implementation in ("eager", "heed"):
                    model.set_attn_implementation(implementation)
                    tokens[implementation], calls = count_calls(lambda run=model: run.generate(
                        IDS, attention_mask=LEFT_PADDING, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0))
                    self.assertEqual(calls, 2 * 12 if implementation == "heed" else 0)  # layers, tokens
                self.assertEqual(tokens["heed"].shape, (3, 19 + 12))
                self.assertTrue(torch.equal(tokens["eager"], tokens["heed"]))

    @torch.no_grad()
    def test_static_cache(self):
        model = llama()
        expected = model.generate(IDS, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
        model.set_attn_implementation("heed")
        found = model.generate(IDS, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0,
                               cache_implementation="static", disable_compile=True)
        self.assertTrue(torch.equal(expected, found))

    @torch.no_grad()
    def test_bfloat16(self):
        model = llama().to(torch.bfloat16)
        hidden = {}
        for implementation in ("eager", "heed"):
            model.set_attn_implementation(implementation)
            hidden[implementation] = model(IDS, output_hidden_states=True).hidden_states[-1].double()
        exact = model.double()
        exact.set_attn_implementation("exact")
        hidden["exact"] = exact(IDS, output_hidden_states=True).hidden_states[-1]
        error, allowed = ((hidden[name] - hidden["exact"]).abs().max() for name in ("heed", "eager"))
        self.assertLessEqual(error, 2 * allowed)

    def test_refusals(self):
        model = llama()
        model.set_attn_implementation("heed")
        self.assert_refused(heed.Unsupported, "query requires a gradient", model, IDS)
        with torch.no_grad():
            self.assert_refused(heed.Unsupported, "output_attentions is True", model, IDS, output_attentions=True)

    def test_gradients_of_what_joins_the_scores(self):
        query, key = torch.ones(1, 4, 3, 16), torch.ones(1, 2, 5, 16)
        for name, shape in (("attention_mask", (1, 1, 3, 5)), ("s_aux", (4,)), ("position_bias", (1, 4, 3, 5))):
            options = {"attention_mask": None, name: torch.zeros(shape, requires_grad=True)}

            def attend(options=options):
                return heed.transformers.attention_forward(torch.nn.Module(), query, key, key, **options)

            self.assert_refused(heed.Unsupported, f"{name} requires a gradient", attend)
            with torch.no_grad():
                self.assertEqual(attend()[0].shape, (1, 3, 4, 16))


if __name__ == "__main__":
    unittest.main()
