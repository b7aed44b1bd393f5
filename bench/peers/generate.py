"""Generation by models of transformers with Heed's attention compared with "sdpa", in turns; run it with PYTHONPATH at the package.

    generate.py [--models llama,...] [--sizes small,large] [--dtypes f32,bf16] [--batches 1,8] [--prompts 32,512,4096]
                [--tokens 128] [--rounds 20] [--threads 2] [--json FILE] [--seconds N]

Weights are random, decoding is greedy, both have the cache that transformers gives them. A round generates with one and with
the other, in alternating order; the fastest time of all rounds counts, of the prompt and of each step. Rounds end when the third
or a later one has made neither faster by more than half a percent, or with --rounds. `attention` is the time inside of the
attention function, from runs of their own. In f32 the tokens must be equal; every layer and step must call Heed.

FILE is written after each cell of the table, and cells that it has are not measured again (of which --tokens may be other): the
table may be made in parts, of which --seconds ends one. `--json FILE --seconds 0` prints the table of a file."""
import argparse
import itertools
import json
import pathlib
import time

import torch
import transformers

import heed.transformers
from machine import machine

HEED, SDPA = "heed", "sdpa"
SIZES = {"small": (256, 4, 4), "large": (1024, 16, 16)}  # hidden size, layers, heads of 64
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
VOCAB = 512


def decoder(name, **options):
    """A maker of AutoModelForCausalLM's class, with grouped heads where `kv` says by how much."""
    def make(hidden, layers, heads, most):
        fields = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
                  "num_attention_heads": heads, "vocab_size": VOCAB, "max_position_embeddings": most, "pad_token_id": 0,
                  "bos_token_id": 1, "eos_token_id": None}
        own = {key: value(hidden, heads) if callable(value) else value for key, value in options.items()}
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **{**fields, **own}))

    return make


def grouped(_, heads):
    return max(heads // 4, 1)


def whisper(hidden, layers, heads, most):
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, d_model=hidden, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=2 * hidden, decoder_ffn_dim=2 * hidden, max_target_positions=most,
        pad_token_id=0, bos_token_id=1, eos_token_id=None, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None)
    return transformers.WhisperForConditionalGeneration(config)


def windowed(name, **options):
    return decoder(name, num_key_value_heads=grouped, sliding_window=128, **options)


def opt(hidden, *sizes):
    return decoder("opt", ffn_dim=2 * hidden, word_embed_proj_dim=hidden)(hidden, *sizes)


MODELS = {
    "cohere2": windowed("cohere2", head_dim=64),
    "gemma": decoder("gemma", num_key_value_heads=grouped, head_dim=64),
    "gemma3": windowed("gemma3_text", head_dim=64, query_pre_attn_scalar=64),
    "gpt2": decoder("gpt2"),
    "gpt_neox": decoder("gpt_neox"),
    "granite": decoder("granite", num_key_value_heads=grouped),
    "llama": decoder("llama", num_key_value_heads=grouped),
    "mistral": windowed("mistral", head_dim=64),
    "mixtral": decoder("mixtral", num_key_value_heads=grouped, head_dim=64, num_local_experts=4),
    "olmo": decoder("olmo", num_key_value_heads=grouped),
    "olmo2": decoder("olmo2", num_key_value_heads=grouped),
    "opt": opt,
    "phi": decoder("phi"),
    "phi3": decoder("phi3", num_key_value_heads=grouped),
    "qwen2": decoder("qwen2", num_key_value_heads=grouped),
    "qwen3": decoder("qwen3", num_key_value_heads=grouped, head_dim=64),
    "smollm3": decoder("smollm3", num_key_value_heads=grouped),
    "stablelm": decoder("stablelm", num_key_value_heads=grouped),
    "starcoder2": decoder("starcoder2", num_key_value_heads=grouped),
    "whisper": whisper,
}


class Run:
    """Generation of a model from one prompt by either attention."""

    def __init__(self, model, batch, prompt, tokens):
        self.model, self.batch, self.tokens = model, batch, tokens
        generator = torch.Generator().manual_seed(batch + prompt)
        ids = torch.randint(2, VOCAB, (batch, prompt), generator=generator)
        self.inputs = {"input_ids": ids}
        if model.config.is_encoder_decoder:
            frames = torch.randn(batch, 80, 3000, generator=generator).to(model.dtype)
            outputs = model.get_encoder()(frames)
            self.inputs = {"encoder_outputs": outputs, "decoder_input_ids": ids}
        self.inputs["attention_mask"] = torch.ones_like(ids)
        if model.config.is_encoder_decoder:
            self.inputs["decoder_attention_mask"] = self.inputs.pop("attention_mask")

    def attentions(self):
        """Calls of attention a step: of each decoder layer one, and of encoder-decoders one more on the encoder's tokens."""
        config = self.model.config
        return 2 * config.decoder_layers if config.is_encoder_decoder else config.num_hidden_layers

    def __call__(self, implementation):
        """Tokens, and the seconds of each; the first one takes the prompt."""
        self.model.set_attn_implementation(implementation)
        times = [time.perf_counter()]

        def note(_ids, _scores, **_options):
            times.append(time.perf_counter())
            return torch.zeros(self.batch, dtype=torch.bool)

        out = self.model.generate(**self.inputs, max_new_tokens=self.tokens, do_sample=False,
                                  stopping_criteria=transformers.StoppingCriteriaList([note]))
        return out, [end - begin for begin, end in itertools.pairwise(times)]


class Clock:
    """Seconds inside of both attention functions while it is entered."""

    def __enter__(self):
        self.seconds, self.calls = 0.0, 0
        functions = transformers.AttentionInterface._global_mapping
        self.originals = {name: functions[name] for name in (HEED, SDPA)}
        for name, function in self.originals.items():
            transformers.AttentionInterface.register(name, self.timed(function))
        return self

    def __exit__(self, *_):
        for name, function in self.originals.items():
            transformers.AttentionInterface.register(name, function)

    def timed(self, function):
        def run(*arguments, **options):
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds += time.perf_counter() - start
            self.calls += 1
            return result

        return run


def measure(run, rounds):
    fastest, tokens, attention = {}, {}, {}
    for n in range(rounds):
        before = dict(fastest)
        for name in (HEED, SDPA) if n % 2 == 0 else (SDPA, HEED):
            tokens[name], seconds = run(name)
            fastest[name] = list(map(min, fastest.get(name, seconds), seconds))
        if n >= 2 and all(sum(fastest[name]) > 0.995 * sum(before[name]) for name in fastest):
            break
    for name in (HEED, SDPA):
        before = heed._heed.num_calls()
        with Clock() as clock:
            run(name)
        attention[name] = clock.seconds
        if name == HEED and heed._heed.num_calls() - before != clock.calls:
            raise SystemExit(f"{clock.calls} calls of attention, of which Heed computed {heed._heed.num_calls() - before}")
        expected = run.tokens * run.attentions()
        if clock.calls != expected:
            raise SystemExit(f"{clock.calls} calls of attention; layers and steps have {expected}")
        calls = clock.calls
    steps = run.tokens - 1
    decoding = {name: sum(seconds[1:]) for name, seconds in fastest.items()}
    return {"tokens_per_second": {name: run.batch * steps / seconds for name, seconds in decoding.items()},
            "prompt_ms": {name: 1e3 * seconds[0] for name, seconds in fastest.items()},
            "ms_per_step": {name: 1e3 * seconds / steps for name, seconds in decoding.items()},
            "attention_ms_per_step": {name: 1e3 * seconds / run.tokens for name, seconds in attention.items()},
            "calls_per_step": calls / run.tokens, "same_tokens": torch.equal(tokens[HEED], tokens[SDPA])}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("models", ",".join(MODELS)), ("sizes", "small,large"), ("dtypes", "f32,bf16"), ("batches", "1,8"),
                          ("prompts", "32,512,4096")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after this time")
    options = parser.parse_args()
    for name in ("models", "sizes", "dtypes", "batches", "prompts"):
        setattr(options, name, getattr(options, name).split(","))
    return options


KEYS = "model", "size", "dtype", "batch", "prompt"


def print_row(row):
    ours, theirs = row["ms_per_step"][HEED], row["ms_per_step"][SDPA]
    inside, prompt = row["attention_ms_per_step"], row["prompt_ms"]
    name = "{} {} {} {}x{}".format(*(row[key] for key in KEYS))
    print(f"{name:30} {row['calls_per_step']:6.1f} {ours:10.2f} {theirs:8.2f} {theirs / ours:6.2f} {inside[HEED]:10.2f} {inside[SDPA]:7.2f} "
          f"{prompt[HEED]:10.1f} {prompt[SDPA]:8.1f}  {'equal' if row['same_tokens'] else 'other'}", flush=True)


def measure_cells(options, rows, save):
    """What `rows` lacks of the table, in the order of its models, until the time is over."""
    end = time.monotonic() + options.seconds
    known = {tuple(row[key] for key in KEYS) for row in rows}
    for model_name, size, dtype in itertools.product(options.models, options.sizes, options.dtypes):
        model = None
        for batch, prompt in itertools.product(map(int, options.batches), map(int, options.prompts)):
            cell = (model_name, size, dtype, batch, prompt)
            if cell in known or time.monotonic() >= end:
                continue
            if model is None:
                torch.manual_seed(0)
                longest = max(map(int, options.prompts)) + options.tokens + 1
                model = MODELS[model_name](*SIZES[size], longest).eval().to(DTYPES[dtype])
            rows.append({**dict(zip(KEYS, cell)), "tokens": options.tokens, **measure(Run(model, batch, prompt, options.tokens), options.rounds)})
            print_row(rows[-1])
            save()


@torch.inference_mode()
def main():
    options = parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    heed.transformers.register()
    rows = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []

    def save():
        if options.json:
            text = json.dumps({"machine": machine(), "threads": options.threads, "torch": torch.__version__,
                               "transformers": transformers.__version__, "rows": rows}, indent=1)
            options.json.write_text(text + "\n")

    print(f"{'model':30} {'calls':>6} {'ms a step':>10} {'sdpa':>8} {'ratio':>6} {'attention':>10} {'sdpa':>7} {'prompt ms':>10} {'sdpa':>8}  tokens")
    for row in rows:
        print_row(row)
    measure_cells(options, rows, save)
    slower = sum(row["ms_per_step"][HEED] > row["ms_per_step"][SDPA] for row in rows)
    print(f"{len(rows)} cells, {slower} slower than sdpa")
    wrong = [row for row in rows if row["dtype"] == "f32" and not row["same_tokens"]]
    if wrong:
        raise SystemExit(f"{len(wrong)} cells have other tokens in f32")


if __name__ == "__main__":
    main()
