"""``forward`` and the passes beside it: probed rows, a prompt's log-probabilities, and embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.floats import unpack_floats
from inferd.protocol.operations import operation
from inferd.protocol.sampling import Sampling

MAX_LOGPROBS = 20
"""Most likely tokens that a generation tells with each of its own."""


@dataclass(frozen=True)
class Probe:
    """``kind``: logits | distribution (``temperature``, ``k``) | logprobs (``tokens``) | entropy."""

    kind: str
    temperature: float = 1.0
    k: int = 0
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ProbeResult:
    """What one probe found in one row: :attr:`values`, of ``tokens`` where it speaks of some tokens only."""

    packed: str
    tokens: list[int] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """The numbers: logits, probabilities, log-probabilities, or one entropy."""
        return unpack_floats(self.packed)

    @property
    def value(self) -> float:
        """The first number, for probes that give one (Entropy, Logprob)."""
        return self.values[0]


@dataclass(frozen=True)
class TokenLogprob:
    """A token of a prompt or of the output: its log-probability given all before it, and its ``rank`` (1 is the most likely).

    Of the output, too, these are the model's own, before penalties, bias, constraint and temperature.
    ``top_tokens`` are the most likely ones at its place, with their log-probabilities. The first token of a context has
    nothing before it: ``logprob`` is None and ``rank`` 0.
    """

    token: int
    logprob: float | None = None
    rank: int = 0
    top_tokens: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


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


@dataclass(frozen=True)
class ForwardResult:
    """The probed rows of a forward pass, in the order asked for, and the context's new length."""

    rows: list[RowResult]
    length: int


@operation("forward", ForwardResult)
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


@dataclass(frozen=True)
class TokenLogprobs:
    """One entry per token, and the context's new length."""

    tokens: list[TokenLogprob]
    length: int


@dataclass(frozen=True)
class Embeddings:
    """One entry per input: vectors of ``size`` numbers, packed behind each other as in ``floats.py``."""

    size: int
    packed: list[str]


@operation("prompt_logprobs", TokenLogprobs)
@dataclass(frozen=True)
class PromptLogprobs:
    """Append ``tokens`` and tell each one's log-probability given all before it, with the ``top`` most likely ones.

    The last token stays pending. ``adapter``: as in ``generate.start``.
    """

    context: int
    tokens: list[int]
    top: int = 0
    adapter: str = ""


@operation("model.embed", Embeddings)
@dataclass(frozen=True)
class Embed:
    """Final hidden states of ``texts`` or of ``tokens`` (one of them). ``pooling``: mean | last | cls | none.

    ``adapter``: as in ``generate.start``.
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    pooling: str = "mean"
    normalize: bool = True
    model: str = ""
    adapter: str = ""
