"""Every operation that crosses a wall, defined once: requests with their replies. The errors stand in ``errors.py``.

The sandbox carries these dataclasses as JSON, the network and the engine link as msgpack. Standard library only,
because this file is part of the sandboxed runner. Adding a primitive = one dataclass here, one handler in the
runtime's ``session`` package, one method in the SDK.
"""

from __future__ import annotations

import base64
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from inferd.adapter_operations import (  # isort: skip
    AdapterInfo as AdapterInfo,
    Adapters as Adapters,
    DropAdapter as DropAdapter,
    ListAdapters as ListAdapters,
    LoadAdapter as LoadAdapter,
    Upload as Upload,
    UploadAdapter as UploadAdapter,
)
from inferd.errors import (  # isort: skip
    # Re-exported: whoever speaks the protocol needs its errors, too.
    ERRORS as ERRORS,
    Cancelled as Cancelled,
    ClientError as ClientError,
    ConstraintError as ConstraintError,
    ConstraintViolated as ConstraintViolated,
    ErrorInfo as ErrorInfo,
    InferdError as InferdError,
    InternalError as InternalError,
    InvalidRequest as InvalidRequest,
    LimitExceeded as LimitExceeded,
    NotFound as NotFound,
    ProgramError as ProgramError,
    ProgramSyntaxError as ProgramSyntaxError,
    SnapshotDamaged as SnapshotDamaged,
    SnapshotForeign as SnapshotForeign,
    Unauthorized as Unauthorized,
    Unavailable as Unavailable,
)
from inferd.grammar_operations import (  # isort: skip
    MAX_ACCEPT as MAX_ACCEPT,
    AcceptTokens as AcceptTokens,
    AllowedTokens as AllowedTokens,
    CheckedKeyword as CheckedKeyword,
    CompiledGrammar as CompiledGrammar,
    CompileGrammar as CompileGrammar,
    Constraint as Constraint,
    Forced as Forced,
    ForkMatcher as ForkMatcher,
    GetForced as GetForced,
    GetMask as GetMask,
    MatcherState as MatcherState,
    OpenMatcher as OpenMatcher,
    ReleaseGrammar as ReleaseGrammar,
    RollbackMatcher as RollbackMatcher,
    TagConstraint as TagConstraint,
)
from inferd.operations import (  # isort: skip
    OPERATIONS as OPERATIONS,
    Done as Done,
    operation as operation,
)
from inferd.pass_operations import (  # isort: skip
    Embed as Embed,
    Embeddings as Embeddings,
    PromptLogprobs as PromptLogprobs,
    TokenLogprobs as TokenLogprobs,
)
from inferd.probes import (  # isort: skip
    MAX_LOGPROBS as MAX_LOGPROBS,
    Probe as Probe,
    ProbeResult as ProbeResult,
    TokenLogprob as TokenLogprob,
)
from inferd.sampling_operations import (  # isort: skip
    MAX_BIASES as MAX_BIASES,
    Sampling as Sampling,
)
from inferd.saved import (  # isort: skip
    MAX_EXPORT_BYTES as MAX_EXPORT_BYTES,
    DeleteSaved as DeleteSaved,
    ExportContext as ExportContext,
    Exported as Exported,
    ImportContext as ImportContext,
    ListSaved as ListSaved,
    Opened as Opened,
    OpenSaved as OpenSaved,
    SaveContext as SaveContext,
    SavedContext as SavedContext,
    SavedContexts as SavedContexts,
    TakeSaved as TakeSaved,
)
from inferd.speculation_operations import (  # isort: skip
    MAX_DRAFT as MAX_DRAFT,
    SOURCES as SOURCES,
    VERIFIERS as VERIFIERS,
    SourceCount as SourceCount,
    SpeculationSettings as SpeculationSettings,
    Verification as Verification,
    VerifyDraft as VerifyDraft,
)

PROTOCOL_VERSION = 1

# ---------------------------------------------------------------------------------------------------------------------
# Values that several operations share.
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Something added to a context. ``kind``: message (role, text) | text | tokens | cue."""

    kind: str
    role: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What one engine step added to a generation: ``tokens`` (end-of-text excluded) and the text that they complete.

    ``drafted`` tokens were verified, ``accepted`` of them stand, and the model added one of its own; ``truncated`` of all
    these came behind the end of the generation and count for nothing. ``filtered`` guesses were illegal under the
    constraint. ``sources`` says whose they were. ``saved_us``: microseconds that the drafts saved, by the cost model's estimate.
    ``logprobs``, where they were asked for: one per token.
    """

    tokens: list[int]
    text: str = ""
    drafted: int = 0
    accepted: int = 0
    filtered: int = 0
    truncated: int = 0
    saved_us: int = 0
    sources: list[SourceCount] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class ModelInfo:
    """A model that is served. Sizes in tokens."""

    name: str
    vocab_size: int
    max_context: int
    page_size: int
    eos_tokens: list[int]
    fingerprint: str


@dataclass(frozen=True)
class RowResult:
    """A probed row of ``forward``: the sampled token, the most likely tokens with their log-probabilities, the entropy
    in nats, and what each probe found, in the order of the request.
    """

    index: int
    token: int
    top_tokens: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)
    entropy: float = 0.0
    probes: list[ProbeResult] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------------
# Replies.
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """The models that are served; the first is the default."""

    models: list[ModelInfo]


@dataclass(frozen=True)
class Tokens:
    """Token ids."""

    tokens: list[int]


@dataclass(frozen=True)
class Text:
    """Decoded text."""

    text: str


@dataclass(frozen=True)
class ContextState:
    """``length`` tokens in all, ``pending`` of them not yet computed."""

    context: int
    length: int
    pending: int


@dataclass(frozen=True)
class Generation:
    """A started generation. ``prompt`` is filled only for a program's own speculator, which learns from it."""

    generation: int
    position: int
    prompt: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """One or more finished steps. ``finish``: "" while it goes on, else stop | length | closed.

    ``checked``, with the end of a best_effort constraint: the keywords that only the finished text was checked for.
    """

    steps: list[Step]
    finish: str = ""
    checked: list[CheckedKeyword] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """The probed rows of a forward pass, in the order asked for, and the context's new length."""

    rows: list[RowResult]
    length: int


@dataclass(frozen=True)
class Received:
    """A message from the other side of the session."""

    message: Any


@dataclass(frozen=True)
class Usage:
    """What a session has used so far: ``tokens`` generated and delivered, and the engine ``steps`` that made them."""

    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


# ---------------------------------------------------------------------------------------------------------------------
# Requests. ``op`` is the wire name, ``reply`` the type of the answer. Those about snapshots stand in ``saved.py``.
# ---------------------------------------------------------------------------------------------------------------------


@operation("model.list", Models)
@dataclass(frozen=True)
class ListModels:
    """Which models are served."""


@operation("model.tokenize", Tokens)
@dataclass(frozen=True)
class Tokenize:
    """Text to token ids. Special tokens in the text are read as text unless ``special``."""

    text: str
    model: str = ""
    special: bool = False


@operation("model.detokenize", Text)
@dataclass(frozen=True)
class Detokenize:
    """Token ids to text; special tokens are left out unless ``special``."""

    tokens: list[int]
    model: str = ""
    special: bool = False


@operation("context.create", ContextState)
@dataclass(frozen=True)
class CreateContext:
    """An empty context on a model ("" is the default model)."""

    model: str = ""


@operation("context.append", ContextState)
@dataclass(frozen=True)
class AppendContext:
    """Add parts to a context without computing them. Chat messages go through the model's template."""

    context: int
    parts: list[Part]


@operation("context.flush", ContextState)
@dataclass(frozen=True)
class FlushContext:
    """Compute what is pending, but for the last token, whose logits the next generation needs. ``adapter``: as there."""

    context: int
    adapter: str = ""


@operation("context.fork", ContextState)
@dataclass(frozen=True)
class ForkContext:
    """A copy of the first ``length`` tokens (-1: all) that shares what is computed of them.

    While a generation runs on the context, "all" is what it has delivered, and it goes on undisturbed. A length at which a
    healed prompt's end is not written again whole gives the whole prompt.
    """

    context: int
    length: int = -1


@operation("context.truncate", ContextState)
@dataclass(frozen=True)
class TruncateContext:
    """Keep the first ``length`` tokens."""

    context: int
    length: int


@operation("context.tokens", Tokens)
@dataclass(frozen=True)
class ContextTokens:
    """The token ids that a context holds, from ``start``."""

    context: int
    start: int = 0


@operation("context.release", Done)
@dataclass(frozen=True)
class ReleaseContext:
    """Give the context's pages back."""

    context: int


@operation("forward", Rows)
@dataclass(frozen=True)
class Forward:
    """Append ``tokens``, compute everything pending, and answer for the rows ``at`` (indices into ``tokens``).

    An empty ``at`` means the last token. ``top`` asks for that many most likely tokens with log-probabilities, ``probes``
    for more. ``mask`` (allowed token ids; None: all; or as ``mask_bits``, see ``masks.py``) and the bias, added to the
    logits of ``bias_tokens``, come before sampler and probes.

    ``attention_mask``: per token, which tokens of the context it attends to, as run lengths over the whole context
    behind the last token given: hidden, seen, hidden, ... Empty means all up to itself. ``positions``: per token, where
    it stands for the model's position encoding; empty means behind the token before. ``adapter``: as in ``generate.start``.
    """

    context: int
    tokens: list[int]
    at: list[int] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    top: int = 0
    probes: list[Probe] = field(default_factory=list)
    mask: list[int] | None = None
    bias_tokens: list[int] = field(default_factory=list)
    bias_values: list[float] = field(default_factory=list)
    attention_mask: list[list[int]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    adapter: str = ""
    mask_bits: str = ""


@operation("generate.start", Generation)
@dataclass(frozen=True)
class StartGenerate:
    """Start generating at the end of a context, which belongs to the generation until it is closed.

    ``program_speculation``: every ``generate.next`` brings a draft of the program's own speculator. ``program_constraint``:
    every one brings a mask, and runs one step; no other constraint and no speculation with it. ``adapter``: the LoRA
    adapter to compute with, "" is none; tokens that were computed with another one are computed again. ``priority``, from
    -3 to 3: each step up doubles its share of what the tenant gets. ``speculation``: how to draft, with
    ``system_speculation``. ``predicted`` or ``predicted_text``: what the output will probably be, used as a draft. ``heal``:
    cut the context back where it ends inside a token, and write its end again; the steps' text begins behind it.
    ``logprobs``: tell each token's log-probability, and so many (at most MAX_LOGPROBS) of the most likely at its place.
    """

    context: int
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    stop: list[str] = field(default_factory=list)
    constraint: Constraint | None = None
    system_speculation: bool = False
    program_speculation: bool = False
    adapter: str = ""
    priority: int = 0
    program_constraint: bool = False
    speculation: SpeculationSettings | None = None
    predicted: list[int] = field(default_factory=list)
    predicted_text: str = ""
    heal: bool = False
    logprobs: int | None = None


@operation("generate.next", Steps)
@dataclass(frozen=True)
class NextSteps:
    """Wait for the next finished steps. ``draft`` only with ``program_speculation``, a mask (allowed token ids, or bits as
    in ``forward``; neither: all) only with ``program_constraint``. ``parents``: per draft token, which one it follows (-1:
    the context; a smaller index than its own); empty means a chain. ``positions`` are absolute.
    """

    generation: int
    draft: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    mask: list[int] | None = None
    mask_bits: str = ""


@operation("generate.close", ContextState)
@dataclass(frozen=True)
class CloseGenerate:
    """End a generation; the context keeps exactly the first ``keep`` generated tokens. ``-1``: all that were delivered, and
    the end-of-text that the model wrote behind them.
    """

    generation: int
    keep: int = -1


@operation("session.send", Done)
@dataclass(frozen=True)
class SendMessage:
    """A JSON value for whoever launched the program."""

    message: Any


@operation("session.receive", Received)
@dataclass(frozen=True)
class ReceiveMessage:
    """Wait for a JSON value from whoever launched the program."""


@operation("session.usage", Usage)
@dataclass(frozen=True)
class GetUsage:
    """What this session has used so far."""


# ---------------------------------------------------------------------------------------------------------------------
# Dataclass <-> plain values, for places that have no msgspec (the sandbox).
# ---------------------------------------------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """A dataclass as dicts and lists; everything else unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


LISTS_OF: dict[str, dict[str, type[Any]]] = {
    "Models": {"models": ModelInfo},
    "Adapters": {"adapters": AdapterInfo},
    "Steps": {"steps": Step, "checked": CheckedKeyword},
    "Step": {"sources": SourceCount, "logprobs": TokenLogprob},
    "CompiledGrammar": {"checked": CheckedKeyword},
    "Rows": {"rows": RowResult},
    "RowResult": {"probes": ProbeResult},
    "TokenLogprobs": {"tokens": TokenLogprob},
    "SavedContexts": {"saved": SavedContext},
}
"""Of each class, the fields that are lists of other ones."""
NO_LISTS: dict[str, type[Any]] = {}
BYTES_OF = {"Exported": "data"}


def reply_from_plain(cls: type[Any], data: dict[str, Any]) -> Any:
    """Build a reply dataclass from plain values. Unknown keys of a newer runtime are left out."""
    known = cls.__dataclass_fields__
    values = {key: value for key, value in data.items() if key in known}
    for key, item in LISTS_OF.get(cls.__name__, NO_LISTS).items():
        if values.get(key):
            values[key] = [reply_from_plain(item, entry) for entry in values[key]]
    packed = BYTES_OF.get(cls.__name__, "")
    if isinstance(values.get(packed), str):
        values[packed] = base64.b64decode(values[packed])  # as JSON carries bytes
    return cls(**values)
