"""attn_implementation="heed" in models of Hugging Face with random weights, against "eager"; needs torch and transformers."""

import copy
import unittest
import warnings

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
RIGHT_PADDING = (torch.arange(19) < torch.tensor([[19], [4], [11]])).long()
LEFT_PADDING = (torch.arange(19) >= torch.tensor([[0], [4], [11]])).long()


def count_calls(function):
    """What function gives, and how many attentions Heed computed meanwhile."""
    before = heed._heed.num_calls()
    return function(), heed._heed.num_calls() - before


class Models(Test):
    @torch.no_grad()
    def assert_as_eager(self, model, rows=None, calls_per_layer=1, **inputs):
        """The last hidden states: as near to exact ones in float64 as twice eager's in float32."""
        hidden = {}
        for name, dtype, implementation in (("exact", torch.float64, "exact"), ("eager", torch.float32, "eager"),
                                            ("heed", torch.float32, "heed")):
            copied = copy.deepcopy(model).to(dtype)
            copied.set_attn_implementation(implementation)
            outputs, calls = count_calls(lambda run=copied: run(**inputs, output_hidden_states=True))
            self.assertEqual(calls, 2 * calls_per_layer if name == "heed" else 0)
            last = outputs.hidden_states[-1].double()
            hidden[name] = last if rows is None else last[rows]
        error = (hidden["heed"] - hidden["exact"]).abs().max()
        self.assertLessEqual(error, 2 * (hidden["eager"] - hidden["exact"]).abs().max())

    def test_prefill(self):
        for make in (llama, bert, t5, mistral, gemma2, gpt_oss):
            with self.subTest(model=make.__name__):
                model = make()
                self.assert_as_eager(model, input_ids=IDS)
                # Sequences that begin at different places are a call each; T5 adds the mask to its bias.
                self.assert_as_eager(model, LEFT_PADDING.bool(), 1 if make is t5 else 3, input_ids=IDS, attention_mask=LEFT_PADDING)
                self.assert_as_eager(model, RIGHT_PADDING.bool(), 1, input_ids=IDS, attention_mask=RIGHT_PADDING)

    def test_generation(self):
        for make in (llama, mistral, gemma2, gpt_oss):
            with self.subTest(model=make.__name__):
                model = make()
                tokens = {}
                for implementation in ("eager", "heed"):
                    model.set_attn_implementation(implementation)
                    tokens[implementation], calls = count_calls(lambda run=model: run.generate(
                        IDS, attention_mask=LEFT_PADDING, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0))
                    # Layers; the prompts begin at three places, each further token is one call.
                    self.assertEqual(calls, 2 * (3 + 11) if implementation == "heed" else 0)
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

    def test_gradients(self):
        """Of every parameter, of prompts with padding: as near to float64 as twice eager's in float32, and a few roundings of the
        model's largest gradient."""
        for make in (llama, bert, t5, mistral, gemma2, gpt_oss):
            for padding in (None, LEFT_PADDING, RIGHT_PADDING):
                model, found = make(), {}
                for name, dtype, implementation in (("exact", torch.float64, "exact"), ("eager", torch.float32, "eager"),
                                                    ("heed", torch.float32, "heed")):
                    copied = copy.deepcopy(model).to(dtype)
                    copied.set_attn_implementation(implementation)
                    outputs, calls = count_calls(lambda run=copied: run(IDS, attention_mask=padding, output_hidden_states=True))
                    self.assertGreaterEqual(calls, 2 if name == "heed" else 0)
                    last = outputs.hidden_states[-1]
                    (last if padding is None else last[padding.bool()]).square().sum().backward()
                    found[name] = {key: p.grad.double() for key, p in copied.named_parameters() if p.grad is not None}
                self.assertEqual(found["heed"].keys(), found["exact"].keys())
                rounding = 2.0**-22 * max(gradient.abs().max() for gradient in found["exact"].values())
                for key, expected in found["exact"].items():
                    with self.subTest(model=make.__name__, padding=padding is not None, parameter=key):
                        error, allowed = ((found[name][key] - expected).abs().max() for name in ("heed", "eager"))
                        self.assertLessEqual(error, 2 * allowed + rounding)

    def test_eval_mode(self):
        """Outside of no_grad: the bits of a call under it."""
        for make in (llama, t5, gpt_oss):
            model = make()
            model.set_attn_implementation("heed")
            with torch.no_grad():
                expected = model(IDS, attention_mask=LEFT_PADDING, output_hidden_states=True).hidden_states[-1]
            self.assert_equal(expected, model(IDS, attention_mask=LEFT_PADDING, output_hidden_states=True).hidden_states[-1].detach())

    @torch.no_grad()
    def test_autocast(self):
        """The attention computes in the type of torch.autocast, with padding, a bias and sinks too."""
        types = []

        def noting(module, query, key, value, *arguments, **options):
            out = heed.transformers.attention_forward(module, query, key, value, *arguments, **options)
            types.append((query.dtype, out[0].dtype))
            return out

        transformers.AttentionInterface.register("heed", noting)
        try:
            for make in (llama, t5, gpt_oss):
                model = make()
                model.set_attn_implementation("heed")
                for padding in (None, LEFT_PADDING):
                    types.clear()
                    with torch.autocast("cpu", torch.bfloat16):
                        model(IDS, attention_mask=padding)
                    self.assertEqual({out for _, out in types}, {torch.bfloat16})
                    if make is llama:
                        self.assertIn(torch.float32, {query for query, _ in types})  # what RoPE made of it
        finally:
            transformers.AttentionInterface.register("heed", heed.transformers.attention_forward)

    @torch.no_grad()
    def test_refusals(self):
        model = llama()
        model.set_attn_implementation("heed")
        self.assert_refused(heed.Unsupported, "output_attentions is True", model, IDS, output_attentions=True)


FAMILIES = ("cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "llama",
            "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmoe", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe",
            "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2")


def family(name):
    """A decoder of two layers, with a window of 5 tokens where its kind has windows."""
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "vocab_size": 101, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    if name in ("gemma", "gemma2", "gemma3_text", "glm4", "helium", "nemotron", "qwen3", "smollm3"):
        fields["head_dim"] = 16
    config = transformers.AutoConfig.for_model(name, **fields)
    if getattr(config, "sliding_window", None):
        config.sliding_window = 5
    return transformers.AutoModelForCausalLM.from_config(config).eval()


class Families(Test):
    def test_generation(self):
        """Tokens as eager's of prompts with padding, every attention of every layer by Heed."""
        for name in FAMILIES:
            with self.subTest(family=name):
                torch.manual_seed(0)
                model = family(name)
                tokens = {}
                for implementation in ("eager", "heed"):
                    model.set_attn_implementation(implementation)
                    tokens[implementation], calls = count_calls(lambda run=model: run.generate(
                        IDS, attention_mask=LEFT_PADDING, max_new_tokens=6, min_new_tokens=6, do_sample=False))
                    self.assertEqual(calls, 2 * (3 + 5) if implementation == "heed" else 0)
                self.assertTrue(torch.equal(tokens["eager"], tokens["heed"]))

    def test_models_that_never_call_the_interface(self):
        """A warning when they are made and when they are changed; theirs is the slow path."""
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101}
        for config in (transformers.FalconConfig(**sizes), transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=101),
                       transformers.MptConfig(d_model=64, n_layers=2, n_heads=4, vocab_size=101)):
            sentence = "never calls transformers' AttentionInterface: attn_implementation is '(sdpa|eager)'"
            with self.assertWarnsRegex(UserWarning, sentence):
                model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="heed")
            with self.assertWarnsRegex(UserWarning, sentence) as warning:
                model.set_attn_implementation("heed")
            self.assertEqual(warning.filename, __file__)
            self.assertIn(model.config._attn_implementation, ("sdpa", "eager"))

    def test_others_make_no_noise(self):
        class Mine(transformers.LlamaForCausalLM):
            pass

        heed.transformers.register()  # a second time changes nothing
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for make in (transformers.LlamaForCausalLM, Mine):
                make(llama(attn_implementation="heed").config).set_attn_implementation("heed")
            falcon = transformers.FalconConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=101)
            transformers.AutoModelForCausalLM.from_config(falcon)


class Temperature(Test):
    @torch.no_grad()
    def test_llama4(self):
        """Layers without RoPE scale queries by their position: attn_scale, floor_scale, and 1 added to the position."""
        config = transformers.Llama4TextConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                               num_hidden_layers=4, attn_temperature_tuning=True, attn_scale=0.7, floor_scale=5,
                                               no_rope_layers=[0, 0, 0, 0], attn_implementation="eager")
        module = transformers.models.llama4.modeling_llama4.Llama4TextAttention(config, 0).double()
        x = 3 * torch.randn(2, 40, 64, dtype=torch.float64)
        hidden = torch.full((40, 40), -torch.inf, dtype=torch.float64).triu(1)
        expected = module(x, None, hidden)[0]
        q, k, v = (project(x).view(2, 40, -1, 16).float() for project in (module.q_proj, module.k_proj, module.v_proj))
        same = {"temperature_growth": config.attn_scale, "temperature_interval": config.floor_scale, "temperature_shift": 1}

        def project_out(**temperature):
            return module.o_proj(heed.attention(q, k, v, causal=True, **temperature).reshape(2, 40, 64).double())

        self.assertLess((project_out(**same) - expected).abs().max(), 1e-5)
        for other in ({}, {**same, "temperature_shift": 0}, {**same, "temperature_growth": 0.6}):
            self.assertGreater((project_out(**other) - expected).abs().max(), 1e-3, other)


if __name__ == "__main__":
    unittest.main()
