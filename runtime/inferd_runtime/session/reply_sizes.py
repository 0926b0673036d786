"""How large the reply to a call may be, told by the call: what is outstanding may wait in sockets until somebody reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from inferd.protocol import (
    MAX_EXPORT_BYTES,
    MAX_SNAPSHOTS,
    ContextTokens,
    Detokenize,
    Embed,
    ExportContext,
    Forward,
    GetTokenizerInfo,
    GetVocabulary,
    ListSaved,
    PromptLogprobs,
    RenderChat,
    TokenBytes,
    Tokenize,
)
from inferd_runtime.session.wire import JSON, MSGPACK

MOST_NUMBERS = 1 << 20
"""In one reply: what the engine allows."""
VOCABULARY_BYTES = 2 << 20
"""What a vocabulary of 150,000 tokens takes, with some room."""
TOKENIZER_BYTES = 128 << 10
"""What a chat template and the names of special tokens take, with some room."""
SAVED_BYTES = 320
"""Of a saved context with the longest name, and the name of its model, in a list."""
FIXED: Mapping[str, int] = {
    ExportContext.op: MAX_EXPORT_BYTES, GetVocabulary.op: VOCABULARY_BYTES,  # type: ignore[attr-defined]
    GetTokenizerInfo.op: TOKENIZER_BYTES, ListSaved.op: MAX_SNAPSHOTS * SAVED_BYTES,  # type: ignore[attr-defined]
}  # fmt: skip
TOKEN_BYTES = 8
"""Of a token's id in a list."""
TEXT_BYTES = 192
"""Of a token's text, in base64: the longest tokens that there are have 128 characters."""
NUMBER_BYTES = 7
"""Of a number in a reply, in base64."""
SCORED_NUMBER_BYTES = 14
"""Of a log-probability or a token's id, as JSON writes them."""
NAMES_BYTES = 128
"""Of the names around the numbers of a row, a probe or a token."""
VECTOR_NUMBERS = 8192
"""Of an embedding, at most."""
LARGEST = MOST_NUMBERS * SCORED_NUMBER_BYTES
LONG_CALL = 256 << 10
"""Bytes of a call that is not looked into: its reply counts as the largest."""


@dataclass(frozen=True)
class ModelSizes:
    """Tokens in the vocabulary, and in the context, of the largest model that is served."""

    vocabulary: int = 1 << 18
    context: int = 1 << 17


LARGE_MODEL = ModelSizes()


class _Probe(msgspec.Struct):
    kind: str = ""
    k: int = 0
    tokens: list[int] = []

    def numbers(self, vocabulary: int) -> int:
        return {"logits": vocabulary, "distribution": 2 * (self.k or vocabulary)}.get(
            self.kind, 1 + 2 * len(self.tokens)
        )


class _Asked(msgspec.Struct):
    """What of a call's arguments tells how large the reply may be."""

    def size(self, model: ModelSizes) -> int:
        raise NotImplementedError


class _Forward(_Asked):
    at: list[int] = []
    top: int = 0
    probes: list[_Probe] = []

    def size(self, model: ModelSizes) -> int:
        top = 2 * min(self.top, model.vocabulary) * SCORED_NUMBER_BYTES
        probes = sum(NAMES_BYTES + probe.numbers(model.vocabulary) * NUMBER_BYTES for probe in self.probes)
        return (1 + (len(self.at) or 1)) * (NAMES_BYTES + top + probes)


class _Scored(_Asked):
    tokens: list[int] = []
    top: int = 0

    def size(self, model: ModelSizes) -> int:
        return (1 + len(self.tokens)) * (NAMES_BYTES + 2 * min(self.top, model.vocabulary) * SCORED_NUMBER_BYTES)


class _Embedded(_Asked):
    texts: list[str] = []
    tokens: list[list[int]] = []
    pooling: str = ""

    def size(self, model: ModelSizes) -> int:
        inputs = len(self.texts) + len(self.tokens)
        return LARGEST if self.pooling == "none" else inputs * VECTOR_NUMBERS * NUMBER_BYTES


class _Held(_Asked):
    start: int = 0

    def size(self, model: ModelSizes) -> int:
        return NAMES_BYTES + max(0, model.context - self.start) * TOKEN_BYTES


class _Spelled(_Asked):
    tokens: list[int] = []

    def size(self, model: ModelSizes) -> int:
        return NAMES_BYTES + len(self.tokens) * TEXT_BYTES


PER_BYTE: Mapping[str, int] = {
    Tokenize.op: TOKEN_BYTES, RenderChat.op: 2 * TOKEN_BYTES,  # type: ignore[attr-defined]
}  # fmt: skip
"""Bytes of replies whose size follows from that of the call: each byte of a text may be a token, and be sent as text as well."""
_KINDS: Mapping[str, type[_Asked]] = {
    Forward.op: _Forward, PromptLogprobs.op: _Scored, Embed.op: _Embedded,  # type: ignore[attr-defined]
    ContextTokens.op: _Held, Detokenize.op: _Spelled, TokenBytes.op: _Spelled,  # type: ignore[attr-defined]
}  # fmt: skip
_READ: Mapping[tuple[bytes, str], Callable[[bytes | msgspec.Raw], _Asked]] = {
    **{(JSON, op): msgspec.json.Decoder(kind).decode for op, kind in _KINDS.items()},
    **{(MSGPACK, op): msgspec.msgpack.Decoder(kind).decode for op, kind in _KINDS.items()},
}


def reply_size(op: str, arguments: bytes | msgspec.Raw, form: bytes, model: ModelSizes = LARGE_MODEL) -> int:
    """Return the most bytes that the reply may have, 0 where it is small.

    A call that cannot be read gets an error, which is small.
    """
    if op not in _KINDS:
        return FIXED.get(op, 0) + PER_BYTE.get(op, 0) * len(arguments)
    if len(arguments) > LONG_CALL:
        return LARGEST
    try:
        asked = _READ[form, op](arguments)
    except (ValueError, RecursionError):
        return 0
    return max(0, min(asked.size(model), LARGEST))
