"""The messages between a generation and its draft model, in one process or between two."""

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
    """The options of a sequence.

    ``width``: only token ids below it are drawn. ``probabilities``: answers carry the distributions that tokens are drawn from;
    then nothing ends a draft early because of its tokens, which would bias rejection sampling. ``prompt``: the number of first
    tokens that are no output to the sampler's penalties. ``salt``: the target context's, a part of what pages are found by.
    """

    tenant: str
    sampler: RowSampler
    width: int
    probabilities: bool = False
    prompt: int = 0
    salt: str = ""


@dataclass(frozen=True)
class AskDraft:
    """A request: sequence ``sequence`` has the committed ``tokens`` from index ``start`` on; draw ``count`` tokens after them.

    Tokens that the draft model has drawn already are kept as far as they agree with ``tokens``. A newer request of a sequence
    supersedes the one before, which is answered at once with what there is. A draft ends where its confidences multiply to less
    than ``least``. ``spec`` starts the sequence anew. ``within``: seconds after which it is answered with what there is, as
    a later draft is of no use; 0: whenever it is whole.
    """

    op: ClassVar[str] = ASK
    sequence: int
    start: int
    tokens: list[int]
    count: int
    least: float = 0.0
    spec: DraftSpec | None = None
    within: float = 0.0


@dataclass(frozen=True)
class DropDraft:
    """A request to drop the sequence of a generation that is over."""

    op: ClassVar[str] = DROP
    sequence: int


@dataclass(frozen=True)
class DraftAnswer:
    """The answer to :class:`AskDraft`: ``tokens`` drawn after the committed ones, from index ``base`` on.

    ``confidence``: of each token (empty with distributions). ``probabilities``: the distributions, float32[n, width] in row
    order. ``drawn`` tokens were drawn for this request in ``seconds``, not counting what had to be computed before. ``ended``:
    there will be no more tokens before the sequence changes. ``lost``: the sequence is not known, and has to be sent from its
    start. ``error``: why there is no draft.
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
    """The description of a draft model in another process. ``tokenizer``: the text of its tokenizer.json."""

    tokenizer: str
    vocab_size: int
    eos_tokens: list[int]
    max_context: int


AnswerCallback = Callable[[DraftAnswer], None]
Pollable = Any
"""A descriptor, or a socket of ZeroMQ."""


class DraftTransport(Protocol):
    """The transport to a draft model. Belongs to the thread of the step loop, and never blocks it.

    ``overlaps``: the draft model works while the target does. ``round_trip``: the usual seconds that a request and its answer
    travel between two machines; 0 on one machine, and as long as it is not known.
    """

    overlaps: bool

    @property
    def round_trip(self) -> float:
        """See the class."""

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """Send a request. ``done`` is called with the answer once, here or in :meth:`poll`, if there is one."""

    def drop(self, sequence: int) -> None:
        """Drop a sequence."""

    def poll(self) -> bool:
        """Hand over the answers that have arrived. Returns False if there is none."""

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """The descriptors and sockets that are readable when :meth:`poll` has something to do."""

    def close(self) -> None:
        """Release everything. No method is called afterwards."""
