"""What passes between a generation and its draft model, in one process or between two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from inferd_runtime.engine.sampling.host_sampling import RowSampler

ASK = "draft.ask"
DROP = "draft.drop"
DESCRIBE = "draft.describe"


@dataclass(frozen=True)
class DraftSpec:
    """How a sequence is drafted.

    ``width``: only token ids below it are drawn. ``probabilities``: the distributions that tokens are drawn from are wanted;
    then nothing ends a draft early because of what was drawn, which would bias the verifier that reads them. ``prompt``: how
    many of the certain tokens are no output to the sampler's penalties.
    """

    tenant: str
    sampler: RowSampler
    width: int
    probabilities: bool = False
    prompt: int = 0


@dataclass(frozen=True)
class AskDraft:
    """Sequence number ``sequence`` holds ``tokens`` from index ``start`` on, which are certain: draw ``count`` behind them.

    What the draft model has drawn itself and agrees with ``tokens`` stands, the rest is taken back. A newer request of a
    sequence supersedes the one before, which is answered at once with what there is. A draft ends where its confidences
    multiply to less than ``least``. ``spec`` begins the sequence anew.
    """

    op: ClassVar[str] = ASK
    sequence: int
    start: int
    tokens: list[int]
    count: int
    least: float = 0.0
    spec: DraftSpec | None = None


@dataclass(frozen=True)
class DropDraft:
    """The generation is over: forget its sequence."""

    op: ClassVar[str] = DROP
    sequence: int


@dataclass(frozen=True)
class DraftAnswer:
    """``tokens`` were drawn behind the certain tokens, from index ``base`` on.

    ``confidence``: by how much each one won (empty where the distributions are wanted). ``probabilities``: float32[n, width]
    in row order. ``drawn`` tokens were drawn for this request in ``seconds``, not counting what had to be computed before.
    ``ended``: there will be no more before
    the sequence changes. ``lost``: the sequence is not known (any more), and has to be sent from its beginning. ``error``:
    why there is no draft.
    """

    base: int = 0
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    probabilities: bytes = b""
    drawn: int = 0
    seconds: float = 0.0
    ended: bool = False
    lost: bool = False
    error: str = ""


@dataclass(frozen=True)
class DraftDescription:
    """What has to be known of a draft model in another process. ``tokenizer``: the text of its tokenizer.json."""

    tokenizer: str
    vocab_size: int
    eos_tokens: list[int]
    max_context: int


AnswerCallback = Callable[[DraftAnswer], None]
Pollable = Any
"""A descriptor, or a socket of ZeroMQ."""


class DraftTransport(Protocol):
    """The way to a draft model. Belongs to the thread of the step loop, and never blocks it.

    ``overlaps``: the draft model works while the target does.
    """

    overlaps: bool

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """Send a request; ``done`` hears the answer once, here or in :meth:`poll`, if there is one."""
        ...

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        ...

    def poll(self) -> bool:
        """Hand over the answers that have come. False when none has."""
        ...

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """What is readable when :meth:`poll` has something to do."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing is called afterwards."""
        ...
