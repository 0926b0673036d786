"""The tokenizer of a GGUF file: texts are cut as the file says, and what cannot be read exactly is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from inferd.protocol import InvalidRequest
from inferd_runtime.models.store.gguf_tokenizer import SPLITS, FileTokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
BEGIN, END = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<|im_end|>"
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{at:02X}>" for at in range(256)),
    "\u2581",
    "a",
    "b",
    "ab",
    "\u2581a",
    "  ",
    "<x>",
]


def byte_level(pre: str, merges: list[str], words: tuple[str, ...] = (), /, **said: Any) -> FileTokenizer:
    """A vocabulary of all bytes, what the merges make, words that no merge makes, and two control tokens."""
    tokens = [*BYTES, *(merge.replace(" ", "") for merge in merges), *words, BEGIN, END]
    kinds = [*[1] * (len(tokens) - 2), 3, 3]
    roles = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1}
    found = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges, **roles, **said}
    return FileTokenizer({f"tokenizer.ggml.{key}": value for key, value in found.items()})


def sentence_piece(**said: Any) -> FileTokenizer:
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4, 4]
    scores = [*[0.0] * 259, -9.0, -8.0, -8.0, -2.0, -1.0, 0.0, 0.0]
    found = {
        "model": "llama",
        "tokens": PIECES,
        "token_type": kinds,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **said,
    }
    ours = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    return FileTokenizer({**ours, "general.architecture": found.get("architecture", "llama")})


def pieces(tokenizer: FileTokenizer, text: str, *, start: bool = False) -> list[str]:
    return list(tokenizer.build().encode(text, add_special_tokens=start).tokens)


@pytest.mark.parametrize(
    ("pre", "text", "cut"),
    [
        ("smollm", "a\n\n12", ["a", "ĊĊ", "1", "2"]),
        ("gpt-2", "a\n\n12", ["a", "Ċ", "Ċ", "12"]),
        ("llama-bpe", "1212\n\n12", ["12", "1", "2", "ĊĊ", "12"]),
        ("qwen2", "a\n\n12", ["a", "ĊĊ", "1", "2"]),
        ("default", "12\n\n", ["12", "ĊĊ"]),
        ("seed-coder", "12\n\n", ["1", "2", "ĊĊ"]),
        ("deepseek-v3", "1212\n\n12", ["12", "1", "2", "ĊĊ", "12"]),
    ],
)
def test_a_text_is_cut_as_the_file_says(pre: str, text: str, cut: list[str]) -> None:
    """Before its merges are made: what a model was trained with is nothing that one can tell from the vocabulary."""
    assert pieces(byte_level(pre, ["1 2", "Ċ Ċ"]), text) == cut


@pytest.mark.parametrize("pre", SPLITS)
def test_every_known_split_gives_back_the_text(pre: str) -> None:
    text = "Don't  split 12345 naïve 東京 e\u0301\r\n\n\tx+=1 😀 "
    built = byte_level(pre, ["1 2"]).build()
    assert built.decode(built.encode(text).ids) == text


def test_a_word_of_the_vocabulary_is_whole_where_its_family_has_it_so() -> None:
    assert pieces(byte_level("llama-bpe", [], ("zz",)), "zz") == ["zz"]
    assert pieces(byte_level("gpt-2", [], ("zz",)), "zz") == ["z", "z"]


def test_control_tokens_in_other_characters_than_bytes_keep_their_ids() -> None:
    """A reader that spelled them in bytes gave them new ids, behind the model's vocabulary."""
    tokenizer = byte_level("deepseek-r1-qwen", [])
    built = tokenizer.build()
    assert built.encode(f"{BEGIN}a", add_special_tokens=False).ids[0] == len(tokenizer.tokens) - 2
    assert built.get_vocab_size() == len(tokenizer.tokens)
    assert tokenizer.special() == {"bos_token": BEGIN, "eos_token": END}


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [
        ("llama-bpe", {}, True),
        ("qwen2", {}, False),
        ("qwen2", {"add_bos_token": True}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
    ],
)
def test_a_text_begins_as_the_file_or_its_family_says(pre: str, said: dict[str, bool], begins: bool) -> None:
    assert (pieces(byte_level(pre, [], **said), "a", start=True)[0] == BEGIN) is begins


@pytest.mark.parametrize(
    ("prefix", "text", "cut"),
    [
        (True, "ab", ["▁a", "b"]),
        (True, " ab", ["▁", "▁a", "b"]),
        (False, "ab", ["ab"]),
        (False, "é", ["<0xC3>", "<0xA9>"]),
        (False, "a  b<x>ab", ["a", "  ", "b", "<x>", "ab"]),
    ],
)
def test_sentence_piece_merges_by_scores(prefix: bool, text: str, cut: list[str]) -> None:
    tokenizer = sentence_piece(add_space_prefix=prefix)
    built = tokenizer.build()
    assert pieces(tokenizer, text) == cut
    assert built.decode(built.encode(text, add_special_tokens=False).ids) == text
    assert pieces(tokenizer, text, start=True)[0] == "<s>"


def test_merges_of_gemma_4_are_those_that_the_file_lists() -> None:
    """Its scores say nothing: the best of them would make other tokens."""
    tokenizer = sentence_piece(model="gemma4", merges=["a b"])
    built = tokenizer.build()
    assert pieces(tokenizer, " ab\u00e9<x>") == ["\u2581", "ab", "<0xC3>", "<0xA9>", "<x>"]
    assert built.decode(built.encode(" ab\u00e9\n", add_special_tokens=False).ids) == " ab\u00e9\n"


def test_the_line_behind_a_control_token_of_phi_is_a_part_of_it() -> None:
    phi = sentence_piece(token_type=[2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4, 3], architecture="phi3")
    assert pieces(phi, "<x>\nab") == ["<x>\n", "▁a", "b"]
    assert pieces(phi, "<s>\nab")[:3] == ["<s>", "▁", "<0x0A>"]


def test_all_tokens_that_end_an_answer_end_it() -> None:
    """A file names one; a chat model's turn ends with another."""
    tokenizer = byte_level("qwen2", [], ("zz",), eot_token_id=256)
    assert tokenizer.ends() == [len(tokenizer.tokens) - 1, 256]


def test_an_answer_of_gpt_oss_does_not_end_with_its_first_message() -> None:
    """It thinks in one message, which ends as answers of other models do, and answers in another."""
    words = ("<|end|>", "<|return|>", "<|call|>")
    tokenizer = byte_level("gpt-4o", [], words, token_type=[*[1] * len(BYTES), *[3] * 5])
    ends = {tokenizer.tokens[at] for at in tokenizer.ends()}
    assert ends == {END, "<|return|>", "<|call|>"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"pre": "unheard-of"}, "unheard-of"),
        ({"pre": None}, "does not say how texts are split.*gguf-new-metadata"),
        ({"model": "t5"}, "of the kind 't5'"),
        ({"tokens": []}, "no tokenizer"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "a token twice"),
        ({"tokens": 2**31}, "tokens is not a list"),
        ({"merges": [True]}, "merges is not a list"),
        ({"merges": ["a b c"]}, "is not one of two tokens"),
        ({"merges": ["a bb"]}, "is not one of two tokens"),
        ({"token_type": [3] * 1000}, "not as many"),
        ({"pre": ["gpt-2"]}, "splits? as"),
        ({"tokens": ["a" * 1025], "token_type": [1]}, "more than 1024 characters"),
    ],
)
def test_a_vocabulary_that_is_not_known_is_refused(said: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        byte_level("gpt-2", [], **said).build()
