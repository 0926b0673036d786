"""One table of token id -> bytes for a model, built from the text of its `tokenizer.json`.

Two families are understood, told apart by the decoder the file names: byte-level (each character of a token stands for
one byte, GPT-2 `bytes_to_unicode`, Radford et al. 2019) and SentencePiece style (a `Replace` or `Metaspace` step turns
the space mark into a space; with a `ByteFallback` step `<0xNN>` is a byte, without it a text can only be made of
characters that the vocabulary has). Everything else is refused by name: WordPiece, for one, spells a token differently
depending on its neighbours.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.completion.split import Splitter
from inferd_grammar.errors import GrammarError

# llguidance panics (a BaseException) on a token of about 2 kB; 1 kB is known to be fine.
MAX_TOKEN_BYTES = 1024
# Steps that change the start of a text, or join pieces; no token's own bytes.
_NEUTRAL_STEPS = ("Fuse", "Strip")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenTable:
    """Token id -> bytes of one model, immutable, shared by every grammar compiled for it.

    Fields:
        vocab_size: width of the model's logits; at least the tokenizer's, larger where the model pads.
        eos_ids: ids that end a text, in the order given; the first is the one to write.
        special_ids: ids that never stand for text (EOS ids, special and `<...>` added tokens).
        tokens: bytes of each id, `vocab_size` entries; b"" for special, unused and padded ids.
        fingerprint: hex SHA-256 over the tokenizer text, the width and the EOS ids: a key for caches.
        source: the tokenizer.json text itself.
        text_mask: int32[words], bit set for every id that may stand for text.
        eos_mask: int32[words], bit set for every EOS id.
        special_names: id of each special token by its text in the tokenizer.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    tokens: list[bytes] = field(repr=False)
    fingerprint: str
    source: str = field(repr=False)
    text_mask: NDArray[np.int32] = field(repr=False)
    eos_mask: NDArray[np.int32] = field(repr=False)
    special_names: Mapping[str, int] = field(repr=False, default_factory=dict)

    @cached_property
    def words(self) -> int:
        """int32 words in one mask row: ceil(vocab_size / 32)."""
        return words_for(self.vocab_size)

    @cached_property
    def splitter(self) -> Splitter:
        """What spells bytes in the fewest tokens."""
        return Splitter(self.tokens)

    def splitter_for(self, ids: Collection[int]) -> Splitter:
        """Return what spells texts that may hold `ids`, special tokens that a grammar names."""
        return self.splitter.naming(ids) if ids else self.splitter

    def spelled(self, text: str, ids: Collection[int]) -> bytes:
        """Return a text that may name special tokens as :meth:`splitter_for` spells it."""
        splitter = self.splitter_for(ids)
        return b"".join(
            part.encode() if isinstance(part, str) else splitter.written(part) for part in self.split_special(text)
        )

    @cached_property
    def no_mask(self) -> bytes:
        """Return the bytes of a mask row without any token."""
        return bytes(4 * self.words)

    @classmethod
    def from_tokenizer_json(cls, text: str, *, vocab_size: int | None = None, eos_ids: Sequence[int]) -> TokenTable:
        """Build the table from the text of a `tokenizer.json`.

        `vocab_size` is the width of the model's logits (default: the tokenizer's own). Raises GrammarError if the text
        is not a tokenizer of a known family, a token is longer than 1 kB, `vocab_size` is too small, or an EOS id is
        missing, repeated or not a token.
        """
        data = _parse(text)
        names = _names(data)
        size = max(names) + 1 if vocab_size is None else vocab_size
        if size <= max(names):
            raise GrammarError(f"vocab_size {size} is below the tokenizer's {max(names) + 1}")
        eos = _checked_eos(eos_ids, names)
        special = frozenset(_special_ids(data)) | frozenset(eos)
        tokens = _token_bytes(data, names, special, size)
        # 0xFF occurs in no UTF-8 text, and llguidance uses it inside to mark special tokens.
        legal = [i for i, token in enumerate(tokens) if token and b"\xff" not in token]
        digest = hashlib.sha256(f"{size}|{eos}|".encode() + text.encode()).hexdigest()
        named = {names[i]: i for i in special}
        return cls(size, eos, special, tokens, digest, text, bit_mask(legal, size), bit_mask(eos, size), named)

    def allowing(self, ids: Collection[int]) -> TokenTable:
        """Return the same table with `ids`, special tokens that a grammar names, legal where that grammar says so."""
        if not ids:
            return self
        return replace(self, text_mask=self.text_mask | bit_mask(sorted(ids), self.vocab_size))

    def split_special(self, text: str) -> list[str | int]:
        """`text` cut at the names of special tokens, each replaced by its id, as the tokenizer reads it; no empty text.

        Where names overlap the first and longest one counts.
        """
        names = sorted(self.special_names, key=len, reverse=True)
        if not names:
            return [text] if text else []
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return [self.special_names.get(part, part) for part in parts if part]

    @classmethod
    def of_bytes(cls) -> TokenTable:
        """Return a vocabulary of the 256 bytes and one EOS (id 0), for tests and checks: any text has one encoding."""
        chars = {byte: char for char, byte in _gpt2_bytes().items()}
        vocabulary = {"<eos>": 0, **{chars[byte]: byte + 1 for byte in range(256)}}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        data = {
            "version": "1.0",
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            "pre_tokenizer": level,
            "decoder": level,
            "added_tokens": [{"id": 0, "content": "<eos>", "special": True} | flags],
        }
        return cls.from_tokenizer_json(json.dumps(data), eos_ids=[0])


def words_for(vocab_size: int) -> int:
    """int32 words that hold `vocab_size` bits."""
    return (vocab_size + 31) // 32


def bit_mask(ids: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    """int32[words]: bit `i & 31` of word `i >> 5` is set for every id `i`. Read-only."""
    bits = np.zeros(words_for(vocab_size) * 32, dtype=np.uint8)
    bits[np.asarray(ids, dtype=np.int64)] = 1
    words = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    words.flags.writeable = False
    return words


def _parse(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"tokenizer is not JSON text: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise GrammarError("tokenizer has no model: not a tokenizer.json")
    return data


def _names(data: Mapping[str, Any]) -> dict[int, str]:
    """id -> token as it is written in the file, added tokens included."""
    vocab = data["model"].get("vocab")
    if isinstance(vocab, dict):  # BPE, WordPiece, WordLevel
        names = {index: name for name, index in vocab.items()}
    elif isinstance(vocab, list):  # Unigram: a list of (token, score)
        names = {index: entry[0] for index, entry in enumerate(vocab)}
    else:
        raise GrammarError(f"tokenizer model {data['model'].get('type')!r} has no vocabulary")
    names.update({token["id"]: token["content"] for token in _added(data)})
    if not names:
        raise GrammarError("tokenizer has an empty vocabulary")
    return names


def _added(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return data.get("added_tokens") or []


def _special_ids(data: Mapping[str, Any]) -> Iterator[int]:
    """Added tokens flagged special, or written `<...>`: models use those as marks whatever the flag says."""
    for token in _added(data):
        content = token["content"]
        if token["special"] or (content.startswith("<") and content.endswith(">")):
            yield token["id"]


def _checked_eos(eos_ids: Sequence[int], names: Mapping[int, str]) -> tuple[int, ...]:
    eos = tuple(int(i) for i in eos_ids)
    if not eos:
        raise GrammarError("no EOS id given: a constrained text could not end")
    if len(set(eos)) != len(eos):
        raise GrammarError(f"EOS ids {eos} repeat")
    for i in eos:
        if i not in names:
            raise GrammarError(f"EOS id {i} is not a token of this tokenizer")
    return eos


def _token_bytes(data: Mapping[str, Any], names: Mapping[int, str], special: frozenset[int], size: int) -> list[bytes]:
    decode = _decoder(data.get("decoder"))
    added = {token["id"] for token in _added(data)}
    tokens = [b""] * size
    for i, name in names.items():
        token = name.encode() if i in special else decode(name)
        if token is None:  # libraries decode added tokens like others, and as they are where that fails
            if i not in added:
                raise GrammarError(f"token {i} ({name!r}) holds a character that is no byte of a byte-level tokenizer")
            token = name.encode()
        if len(token) > MAX_TOKEN_BYTES:
            raise GrammarError(f"token {i} has {len(token)} bytes; the limit is {MAX_TOKEN_BYTES}")
        if i not in special:
            tokens[i] = token
    return tokens


def _decoder(spec: Any) -> Callable[[str], bytes | None]:
    """Return the function token -> bytes of the family that the file's decoder names; None for what the family cannot hold."""
    steps = [step for step in _steps(spec) if step.get("type") not in _NEUTRAL_STEPS]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level(_gpt2_bytes())
    if kinds and set(kinds) <= {"ByteFallback", "Replace", "Metaspace"} and kinds != ["Replace"]:
        return _sentence_piece(space_marks(spec), bytes_too="ByteFallback" in kinds)
    shown = ", ".join(map(str, kinds)) or "none"
    raise GrammarError(f"tokenizer decoder ({shown}) is neither byte-level nor SentencePiece style")


def _steps(spec: Any) -> list[Mapping[str, Any]]:
    return spec.get("decoders", [spec]) if isinstance(spec, dict) else []


def space_marks(spec: Any) -> list[tuple[str, str]]:
    """(mark, text) that the steps of a SentencePiece-style decoder replace, in order. Raises GrammarError for regexes."""
    return [_replacement(step) for step in _steps(spec) if step.get("type") in ("Replace", "Metaspace")]


def _byte_level(table: Mapping[str, int]) -> Callable[[str], bytes | None]:
    def decode(name: str) -> bytes | None:
        return bytes(table[char] for char in name) if all(char in table for char in name) else None

    return decode


def _sentence_piece(replacements: Sequence[tuple[str, str]], *, bytes_too: bool) -> Callable[[str], bytes]:
    def decode(name: str) -> bytes:
        if bytes_too and (match := _BYTE_TOKEN.fullmatch(name)):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            name = name.replace(old, new)
        return name.encode()

    return decode


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step["pattern"]
    if "String" not in pattern:
        raise GrammarError(f"tokenizer decoder replaces {pattern}: only literal strings are supported")
    return pattern["String"], step["content"]


def _gpt2_bytes() -> dict[str, int]:
    """GPT-2's character for each byte, inverted: Latin-1 printables stand for themselves, the rest follow from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in table.values()]
    table.update({chr(256 + n): byte for n, byte in enumerate(rest)})
    return table
