"""The table of token bytes: both families, added and special tokens, several EOS ids, padding, refusals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.conformance.matcher_checks import legal_ids
from inferd_grammar.tokens import bit_mask, words_for


def build(data: dict[str, Any], **options: Any) -> TokenTable:
    return TokenTable.from_tokenizer_json(json.dumps(data), **{"eos_ids": [0], **options})


@pytest.fixture
def minimal() -> dict[str, Any]:
    """A byte-level file of three tokens, as small as they come."""
    return {
        "model": {"type": "BPE", "vocab": {"<eos>": 0, "a": 1, "Ġb": 2}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 0, "content": "<eos>", "special": True}],
    }


@pytest.mark.parametrize("text", ['{"name":"José 🐢 x","n":[1,null]}', "plain added words", " lead\n\ttab\x7f\x00"])
def test_bytes_of_an_encoding_spell_the_text(tokenizer: Tokenizer, table: TokenTable, text: str) -> None:
    spelt = b"".join(table.tokens[i] for i in tokenizer.encode(text, add_special_tokens=False).ids)
    assert spelt in (text.encode(), b" " + text.encode())  # SentencePiece puts a space in front


def test_special_unused_and_padded_ids_have_no_bytes(tokenizer: Tokenizer, table: TokenTable) -> None:
    assert len(table.tokens) == table.vocab_size == tokenizer.get_vocab_size() + 37
    assert table.words == -(-table.vocab_size // 32) == len(table.text_mask) == len(table.eos_mask)
    assert {
        tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    } <= table.special_ids
    assert all(table.tokens[i] == b"" for i in [*table.special_ids, *range(table.vocab_size - 37, table.vocab_size)])


def test_masks_hold_no_special_or_padded_id(table: TokenTable) -> None:
    bits = np.unpackbits(table.text_mask.view(np.uint8), bitorder="little")
    text = set(np.flatnonzero(bits).tolist())
    assert not text & table.special_ids
    assert max(text) < table.vocab_size - 37


def test_several_eos_ids_all_end_a_text(compiler: GrammarCompiler, table: TokenTable) -> None:
    assert len(table.eos_ids) == 2
    matcher = compiler.compile(JsonSchemaGrammar({"const": 1})).matcher()
    assert matcher.accept(legal_ids(matcher, table)) == 1
    assert legal_ids(matcher, table) == sorted(table.eos_ids)


def test_fingerprint_depends_on_text_width_and_eos(minimal: dict[str, Any]) -> None:
    other = {**minimal, "version": "1.0"}
    tables = [build(minimal), build(minimal, vocab_size=9), build(minimal, eos_ids=[1]), build(other)]
    assert len({table.fingerprint for table in tables}) == 4
    assert build(minimal).fingerprint == tables[0].fingerprint


def test_minimal_table(minimal: dict[str, Any]) -> None:
    table = build(minimal)
    assert (table.tokens, table.vocab_size, table.words) == ([b"", b"a", b" b"], 3, 1)
    assert set(table.special_ids) == {0}


def test_a_word_holds_32_bits() -> None:
    assert [words_for(size) for size in (0, 1, 31, 32, 33, 64, 65)] == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ({"decoder": {"type": "WordPiece"}}, {}, "WordPiece.* is neither byte-level nor SentencePiece style"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "CTC"}]}}, {}, "CTC"),
        (
            {"decoder": {"type": "Replace", "pattern": {"String": "x"}, "content": " "}},
            {},
            "Replace.* is neither byte-level",
        ),
        ({"decoder": None}, {}, "none.* is neither byte-level nor SentencePiece style"),
        ({"model": {"vocab": {"a\u2603": 1, "<eos>": 0}}}, {}, "no byte of a byte-level tokenizer"),
        ({"model": {"vocab": {"a" * 1025: 1, "<eos>": 0}}}, {}, "token 1 has 1025 bytes; the limit is 1024"),
        ({"model": {"type": "X"}}, {}, "has no vocabulary"),
        ({"model": {"vocab": {}}, "added_tokens": []}, {}, "empty vocabulary"),
        ({"model": None}, {}, "not a tokenizer.json"),
        ({}, {"vocab_size": 2}, "vocab_size 2 is below the tokenizer's 3"),
        ({}, {"eos_ids": []}, "no EOS id"),
        ({}, {"eos_ids": [0, 0]}, "repeat"),
        ({}, {"eos_ids": [7], "vocab_size": 9}, "EOS id 7 is not a token"),
    ],
)
def test_what_is_not_supported_is_refused(
    minimal: dict[str, Any], change: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        build({**minimal, **change}, **options)


def test_text_that_is_no_tokenizer_is_refused() -> None:
    for text in ("", "[]", "no json"):
        with pytest.raises(GrammarError):
            TokenTable.from_tokenizer_json(text, eos_ids=[0])


def test_a_table_the_library_reads_differently_is_refused(table: TokenTable) -> None:
    tokens = list(table.tokens)
    a, b = tokens.index(b"a"), tokens.index(b"b")
    tokens[a], tokens[b] = tokens[b], tokens[a]
    wrong = TokenTable(
        table.vocab_size,
        table.eos_ids,
        table.special_ids,
        tokens,
        table.fingerprint,
        table.source,
        table.text_mask,
        table.eos_mask,
    )
    with pytest.raises(GrammarError, match="llguidance decodes"):
        GrammarCompiler(wrong)


def test_added_tokens_are_spelt_as_libraries_decode_them(tokenizer: Tokenizer) -> None:
    """The table is compared with llguidance's decoding when a compiler is made."""
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["plain", "two words", "▁▁x", "Ġy", "<think>"])
    table = TokenTable.from_tokenizer_json(other.to_str(), eos_ids=[other.token_to_id("<|im_end|>")])
    GrammarCompiler(table)
    spelt = {name: table.tokens[other.token_to_id(name)] for name in ("plain", "two words", "<think>")}
    assert spelt == {"plain": b"plain", "two words": b"two words", "<think>": b""}
    byte_level = table.tokens[other.token_to_id("Ġy")] == b" y"
    assert table.tokens[other.token_to_id("▁▁x")] == ("▁▁x".encode() if byte_level else b"  x")


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "Metaspace", "replacement": "▁"}],
        [{"type": "Metaspace", "replacement": "▁"}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁"}],
        [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Strip"}],
        [
            {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Metaspace", "replacement": "▁"},
        ],
    ],
)
def test_space_marks_of_sentence_piece(steps: list[dict[str, Any]]) -> None:
    vocab = {"<eos>": 0, "▁a": 1, "<0x0A>": 2, "▁": 3}
    table = build({"model": {"vocab": vocab}, "decoder": {"type": "Sequence", "decoders": steps}, "added_tokens": []})
    with_bytes = any(step["type"] == "ByteFallback" for step in steps)
    assert table.tokens[1:] == [b" a", b"\n" if with_bytes else b"<0x0A>", b" "]


@pytest.mark.parametrize("size", [1024, 1025])
def test_the_limit_of_a_token_is_in_its_own_bytes(size: int) -> None:
    """llguidance panics at about 2 kB; a byte-level name takes two bytes for some of the token's one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<a>"])
    data = json.loads(tokenizer.to_str())
    data["model"] = {"type": "BPE", "vocab": {"<a>": 0, "Ġ" * size: 1}, "merges": []}
    if size > 1024:
        with pytest.raises(GrammarError, match="token 1 has 1025 bytes"):
            build(data)
    else:
        assert GrammarCompiler(build(data)).table.tokens[1] == b" " * size


def test_text_is_split_at_the_names_of_special_tokens(minimal: dict[str, Any]) -> None:
    added = [(0, "<eos>"), (3, "<a>"), (4, "<a>b"), (5, "[X]")]
    data = {**minimal, "added_tokens": [{"id": i, "content": name, "special": True} for i, name in added]}
    table = build(data)
    assert table.split_special("1<a>2<a>b[X]") == ["1", 3, "2", 4, 5]
    assert table.split_special("<A>") == ["<A>"]
    assert table.split_special("") == []


def test_named_special_tokens_become_legal_in_a_copy_only(table: TokenTable) -> None:
    special = min(table.special_ids - set(table.eos_ids))
    bits = np.unpackbits(table.allowing([special]).text_mask.view(np.uint8), bitorder="little")
    assert bits[special]
    assert not np.unpackbits(table.text_mask.view(np.uint8), bitorder="little")[special]
    assert table.allowing([]) is table


def test_masks_are_shared_and_so_cannot_be_written(table: TokenTable) -> None:
    for mask in (table.text_mask, table.eos_mask, bit_mask([1], 64)):
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = 0


def test_a_token_with_the_byte_ff_is_in_no_text() -> None:
    """No UTF-8 holds it, and the library marks special tokens by it."""
    table = TokenTable.of_bytes()
    allowed = {token for token in range(table.vocab_size) if table.text_mask[token >> 5] >> (token & 31) & 1}
    assert table.tokens.index(b"\xff") not in allowed
    assert table.tokens.index(b"\xfe") in allowed


def test_a_file_may_have_no_added_tokens(minimal: dict[str, Any]) -> None:
    """The end-of-text may be an ordinary entry of the vocabulary."""
    for added in ({"added_tokens": None}, {}):
        data = {**{key: value for key, value in minimal.items() if key != "added_tokens"}, **added}
        assert build(data).tokens == build(minimal).tokens


def test_the_character_behind_the_last_byte_is_no_byte(minimal: dict[str, Any]) -> None:
    minimal["model"]["vocab"] = {"<eos>": 0, chr(256 + 68): 1}
    with pytest.raises(GrammarError, match="no byte of a byte-level tokenizer"):
        build(minimal)
