"""Small tokenizers of the two families, trained here in milliseconds, and a compiler for each."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inferd_grammar import Constraint, GrammarCompiler, GrammarMatcher, TokenTable

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = (
    "name age email city yes no red blue reddest first second third person items value total true false null not sure"
)
TEXTS = [
    json.dumps({first: second, "n": [len(first), {second: first}]}, separators=(",", ":"))
    for first in WORDS.split()
    for second in WORDS.split()
] + ["The quick brown fox jumps over the lazy dog. " * 3, "2024-01-31 abcd ab cd abab 1234567890", "José é 🐢 naïve"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["<tool_call>", "plain added"])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As SentencePiece models come: a space mark put in front, unknown characters as <0xNN>."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *SPECIAL, *bytes_], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


def unigram() -> Tokenizer:
    """A Unigram model with byte fallback, its space mark undone by a `Metaspace` step."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=["<unk>", *SPECIAL, *bytes_], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    data = json.loads(tokenizer.to_str())
    data["model"]["byte_fallback"] = True
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


def table_of(tokenizer: Tokenizer, *, padding: int = 37) -> TokenTable:
    vocabulary = tokenizer.get_vocab()
    eos = [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]]
    size = tokenizer.get_vocab_size() + padding
    return TokenTable.from_tokenizer_json(tokenizer.to_str(), vocab_size=size, eos_ids=eos)


@pytest.fixture(
    scope="session", params=[byte_level, byte_fallback, unigram], ids=["byte-level", "byte-fallback", "unigram"]
)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


@pytest.fixture(scope="session")
def table(tokenizer: Tokenizer) -> TokenTable:
    return table_of(tokenizer)


@pytest.fixture(scope="session")
def compiler(table: TokenTable) -> GrammarCompiler:
    return GrammarCompiler(table)


@pytest.fixture(scope="session")
def make(compiler: GrammarCompiler) -> Callable[[Constraint], GrammarMatcher]:
    return lambda constraint: compiler.compile(constraint).matcher()
