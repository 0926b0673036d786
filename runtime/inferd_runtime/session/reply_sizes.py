"""How large the reply to a call may be, told by the call: what is outstanding may wait in sockets until somebody reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from inferd.protocol import (
    GATEWAY_OPERATIONS,
    MAX_CANDIDATES,
    MAX_CHECKED,
    MAX_DRAFT,
    MAX_EXPORT_BYTES,
    MAX_FORCED,
    MAX_SNAPSHOTS,
    MOST_JOINED,
    MOST_STEPS,
    CompileGrammar,
    ContextTokens,
    Detokenize,
    Embed,
    ExportContext,
    Forward,
    GetChatFormat,
    GetForced,
    GetMask,
    GetTokenizerInfo,
    GetVocabulary,
    ImportContext,
    ListAdapters,
    ListModels,
    ListSaved,
    NextSteps,
    OpenSaved,
    PromptLogprobs,
    RenderChat,
    StartGenerate,
    TakeSaved,
    TokenBytes,
    Tokenize,
)
from inferd_runtime.session.wire import JSON, MSGPACK

MOST_NUMBERS = 1 << 20
"""In one reply: what the engine allows."""
UNDELIVERED_NUMBERS = 1 << 18
"""Of one generation's probes: with so many its steps wait for their reader, except the last one."""
VOCABULARY_BYTES = 2 << 20
"""What a vocabulary of 150,000 tokens takes, with some room."""
TOKENIZER_BYTES = 128 << 10
"""What a chat template and the names of special tokens take, with some room."""
NAMED_BYTES = 32 << 10
"""Of what the operator has named: models, adapters beside those of the tenant, the marks of a chat template."""
SAVED_BYTES = 320
"""Of a saved context with the longest name, and the name of its model, in a list."""
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
STEP_TEXTS = 2 * MOST_JOINED * (TOKEN_BYTES + TEXT_BYTES)
"""Of the tokens and texts of all steps that wait for their reader."""
LARGEST = MOST_NUMBERS * SCORED_NUMBER_BYTES
LONG_CALL = 256 << 10
"""Bytes of a call that is not looked into: its reply counts as the largest."""
LONG_START = 2 << 20
"""The same for the start of a generation, which may have a constraint of a megabyte, and is passed over quickly."""


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


class _Constraint(msgspec.Struct):
    mode: str = ""


class _Speculation(msgspec.Struct):
    max_draft: int = 16


class _Started(_Asked):
    """The start of a generation: its own reply, and each one with steps of it."""

    system_speculation: bool = False
    program_speculation: bool = False
    candidates: int | None = None
    logprobs: int | None = None
    logprob_tokens: list[int] = []
    probes: list[_Probe] = []
    speculation: _Speculation | None = None
    constraint: _Constraint | None = None

    def size(self, model: ModelSizes) -> int:
        learns = self.program_speculation or self.candidates is not None
        return NAMES_BYTES + model.context * TOKEN_BYTES if learns else 0

    def steps(self, model: ModelSizes) -> int:
        """Return the most bytes of its steps in a reply."""
        offered = (
            0 if self.candidates is None else 2 * min(self.candidates or MAX_CANDIDATES, MAX_CANDIDATES) * NUMBER_BYTES
        )
        checked = MAX_CHECKED if self.constraint is not None and self.constraint.mode == "best_effort" else 0
        told = 0 if self.logprobs is None and not self.probes else self._told(model)
        return STEP_TEXTS + offered + checked + told

    def _told(self, model: ModelSizes) -> int:
        """Return the bytes of what is told of tokens, in all steps that may wait and the one that is computed beside them."""
        numbers = sum(probe.numbers(model.vocabulary) for probe in self.probes)
        steps = min(2 * MOST_STEPS, max(1, UNDELIVERED_NUMBERS // max(1, self._rows * numbers))) + 1
        top = 2 * max(self.logprobs or 0, len(self.logprob_tokens)) * SCORED_NUMBER_BYTES
        row = 2 * NAMES_BYTES + top + NAMES_BYTES * len(self.probes) + numbers * NUMBER_BYTES
        return steps * self._rows * row

    @property
    def _rows(self) -> int:
        """How many tokens one step may bring."""
        if not (self.system_speculation or self.program_speculation):
            return 1
        drafted = MAX_DRAFT if self.program_speculation or self.speculation is None else self.speculation.max_draft
        return 1 + drafted


class _Held(_Asked):
    start: int = 0

    def size(self, model: ModelSizes) -> int:
        return NAMES_BYTES + max(0, model.context - self.start) * TOKEN_BYTES


class _Spelled(_Asked):
    tokens: list[int] = []

    def size(self, model: ModelSizes) -> int:
        return NAMES_BYTES + len(self.tokens) * TEXT_BYTES


def _mask_bytes(model: ModelSizes) -> int:
    """Return the bytes of a mask: bits in base64, or a list that is shorter."""
    return NAMES_BYTES + model.vocabulary // 6


def _turn_bytes(model: ModelSizes) -> int:
    """Return the bytes of the open turns of a context that is read back."""
    return NAMES_BYTES + model.context * TOKEN_BYTES


FIXED: Mapping[str, int] = {
    ExportContext.op: MAX_EXPORT_BYTES * 4 // 3 + NAMES_BYTES, GetVocabulary.op: VOCABULARY_BYTES,  # type: ignore[attr-defined]
    GetTokenizerInfo.op: TOKENIZER_BYTES, ListSaved.op: MAX_SNAPSHOTS * SAVED_BYTES,  # type: ignore[attr-defined]
    ListModels.op: NAMED_BYTES, ListAdapters.op: NAMED_BYTES, GetChatFormat.op: NAMED_BYTES,  # type: ignore[attr-defined]
    CompileGrammar.op: NAMES_BYTES + MAX_CHECKED,  # type: ignore[attr-defined]
    GetForced.op: NAMES_BYTES + MAX_FORCED * (2 + TOKEN_BYTES),  # type: ignore[attr-defined]
}  # fmt: skip
PER_BYTE: Mapping[str, int] = {
    Tokenize.op: TOKEN_BYTES, RenderChat.op: 2 * TOKEN_BYTES,  # type: ignore[attr-defined]
}  # fmt: skip
"""Bytes of replies whose size follows from that of the call: each byte of a text may be a token, and be sent as text as well."""
BY_MODEL: Mapping[str, Callable[[ModelSizes], int]] = {
    GetMask.op: _mask_bytes, OpenSaved.op: _turn_bytes, TakeSaved.op: _turn_bytes,  # type: ignore[attr-defined]
    ImportContext.op: _turn_bytes,  # type: ignore[attr-defined]
}  # fmt: skip
KINDS: Mapping[str, type[_Asked]] = {
    Forward.op: _Forward, PromptLogprobs.op: _Scored, Embed.op: _Embedded,  # type: ignore[attr-defined]
    ContextTokens.op: _Held, Detokenize.op: _Spelled, TokenBytes.op: _Spelled,  # type: ignore[attr-defined]
    StartGenerate.op: _Started,  # type: ignore[attr-defined]
}  # fmt: skip
SMALL = frozenset({
    "adapter.upload", "adapter.load", "adapter.drop", "context.create", "context.append", "context.flush", "context.fork",
    "context.truncate", "context.release", "context.save", "context.delete", "generate.close", "grammar.matcher",
    "grammar.accept", "grammar.rollback", "grammar.fork", "grammar.release", "session.send", "session.receive",
    "session.usage", "speculation.verify",
})  # fmt: skip
"""Operations whose replies are bounded by their number. Who adds an operation says here, or above, how large its reply may be."""
STEPS: str = NextSteps.op  # type: ignore[attr-defined]
_READ: Mapping[tuple[bytes, str], Callable[[bytes | msgspec.Raw], _Asked]] = {
    **{(JSON, op): msgspec.json.Decoder(kind).decode for op, kind in KINDS.items()},
    **{(MSGPACK, op): msgspec.msgpack.Decoder(kind).decode for op, kind in KINDS.items()},
}


class ReplySizes:
    """How large the replies to one session's calls may be, told call by call, in their order."""

    def __init__(self, model: ModelSizes = LARGE_MODEL) -> None:
        self._model = model
        self._steps = 0

    def most(self, op: str, arguments: bytes | msgspec.Raw, form: bytes) -> int:
        """Return the most bytes that the engine's reply may have, 0 where it is small.

        A call that cannot be read gets an error, which is small; what the gateway answers is counted when it is known. Steps
        count as the largest ones that a generation of the session may bring, whichever is asked for them.
        """
        if op in SMALL or op in GATEWAY_OPERATIONS:
            return 0
        if op == STEPS:
            return self._steps
        if op in KINDS:
            return self._looked_into(op, arguments, form)
        if op in BY_MODEL:
            return BY_MODEL[op](self._model)
        if op in FIXED or op in PER_BYTE:
            return FIXED.get(op, 0) + PER_BYTE.get(op, 0) * len(arguments)
        return LARGEST

    def _looked_into(self, op: str, arguments: bytes | msgspec.Raw, form: bytes) -> int:
        starts = KINDS[op] is _Started
        if len(arguments) > (LONG_START if starts else LONG_CALL):
            self._steps = LARGEST if starts else self._steps
            return LARGEST
        try:
            asked = _READ[form, op](arguments)
        except (ValueError, RecursionError):
            return 0
        if isinstance(asked, _Started):
            self._steps = max(self._steps, min(asked.steps(self._model), LARGEST))
        return max(0, min(asked.size(self._model), LARGEST))
