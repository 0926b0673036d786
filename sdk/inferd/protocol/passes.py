"""``forward`` and the passes beside it: probed rows, a prompt's log-probabilities, and embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.floats import unpack_floats, unpack_ids
from inferd.protocol.operations import operation
from inferd.protocol.ranges import check_one_each, check_whole
from inferd.protocol.sampling import Sampling, check_draws_of_all
from inferd.protocol.tokens import check_ids

MAX_LOGPROBS = 20
MAX_LOGPROB_TOKENS = 64
"""Most likely tokens that a generation tells with each of its own."""
MAX_PROBES = 32
MAX_INPUTS = 1024
"""Texts, or lists of token ids, of one ``model.embed``."""
POOLINGS = ("mean", "last", "cls", "none")
PROBE_KINDS = ("logits", "distribution", "logprobs", "entropy")
LARGEST_FLOAT32 = 3.4028234663852886e38


@dataclass(frozen=True)
class Probe:
    """``kind``: logits | distribution (``temperature``, ``k``) | logprobs (``tokens``) | entropy."""

    kind: str
    temperature: float = 1.0
    k: int = 0
    tokens: list[int] = field(default_factory=list)


def check_probe(probe: Probe) -> None:
    """Raises InvalidRequest, which names the probe's kind and field."""
    if probe.kind not in PROBE_KINDS:
        raise InvalidRequest(
            f"a probe's kind must be {', '.join(PROBE_KINDS[:-1])} or entropy, not {shown(probe.kind)}"
        )
    if probe.kind == "distribution" and not 0 < probe.temperature < math.inf:
        raise InvalidRequest(f"distribution: temperature must be finite and above 0, not {probe.temperature!r}")
    check_whole(f"{probe.kind}: k", probe.k, 0)
    check_ids("tokens", probe.tokens)
    if probe.kind == "logprobs" and not probe.tokens:
        raise InvalidRequest("logprobs: tokens must name at least one token")


def check_probes(op: str, probes: Sequence[Probe]) -> None:
    """Raises LimitExceeded for too many probes, InvalidRequest, which names the kind and field, for an invalid one."""
    if len(probes) > MAX_PROBES:
        raise LimitExceeded(
            f"{op}: {len(probes)} probes; {MAX_PROBES} are allowed", limit="probes", value=MAX_PROBES,
            raise_with="several calls",
        )  # fmt: skip
    for probe in probes:
        check_probe(probe)


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """What one probe found in one row: :attr:`values`, of :attr:`tokens` where it speaks of some tokens only.

    Both cross packed, as in ``floats.py``, and are unpacked once, when they are asked for.
    """

    packed: str
    packed_tokens: str = ""

    @cached_property
    def values(self) -> list[float]:
        """The numbers: logits, probabilities, log-probabilities, or one entropy."""
        return unpack_floats(self.packed)

    @cached_property
    def tokens(self) -> list[int]:
        """The ids of the tokens that the values are of; none where they are of the whole vocabulary, or of no token."""
        return unpack_ids(self.packed_tokens)

    @property
    def value(self) -> float:
        """The first number, for probes that give one (Entropy, Logprob)."""
        return self.values[0]

    def __repr__(self) -> str:
        return f"ProbeResult(values={shown(self.values)}, tokens={shown(self.tokens)})"


@dataclass(frozen=True)
class TokenProbes:
    """What the probes of a generation found in one token's row, in the order of the request: a sequence of results."""

    results: list[ProbeResult]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> ProbeResult:
        return self.results[index]

    def __iter__(self) -> Iterator[ProbeResult]:
        return iter(self.results)


@dataclass(frozen=True)
class TokenLogprob:
    """A token of a prompt or of the output: its log-probability given all before it, and its ``rank`` (1 is the most likely).

    Of the output, too, these are the model's own, before penalties, bias, constraint and temperature.
    ``top_tokens`` are the most likely ones at its place, or those that were asked for, with their log-probabilities. The first
    token of a context has nothing before it: ``logprob`` is None and ``rank`` 0.
    """

    token: int
    logprob: float | None = None
    rank: int = 0
    top_tokens: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RowResult:
    """A probed row of ``forward``, that of token ``index`` of those given (-1: the context's last): the sampled token, the
    most likely tokens with their log-probabilities, the entropy in nats, and what each probe found, in the order of the request.
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

    An empty ``at`` means the last token: without ``tokens`` the context's own, whose row is number -1. ``top`` asks for that many
    most likely tokens with log-probabilities, ``probes`` for more. ``mask`` (allowed token ids; None: all; or as ``mask_bits``,
    see ``masks.py``) and the bias, added to the logits of ``bias_tokens``, come before sampler and probes.

    ``attention_mask``: per token, which tokens of the context it attends to, as run lengths from the context's start: hidden,
    seen, hidden, ..., up to itself or further, where nothing is seen. Empty means all up to itself. ``positions``: per token,
    where it stands for the model's position encoding; empty means behind the token before. ``adapter``: as in ``generate.start``.
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


def check_forward(request: Forward) -> None:
    """Raises InvalidRequest or LimitExceeded, which name the field, for a pass that no model could make.

    The sampler has a check of its own, ``check_sampling``.
    """
    count = len(request.tokens)
    check_ids("tokens", request.tokens)
    check_ids("at", request.at)
    if len(request.at) > count:
        raise InvalidRequest(f"at names {len(request.at)} rows of {count} tokens")
    if max(request.at, default=-1) >= count:
        raise InvalidRequest(f"at must hold indices below {count}, the number of tokens, not {shown(request.at)}")
    check_whole("top", request.top, 0)
    check_probes("forward", request.probes)
    _check_bias(request.bias_tokens, request.bias_values)
    if request.attention_mask:
        check_one_each("attention_mask", "row", len(request.attention_mask), count)
    check_ids("positions", request.positions)
    if request.positions:
        check_one_each("positions", "number", len(request.positions), count)
    if request.mask is not None:
        check_ids("mask", request.mask)
        check_mask_allows(bool(request.mask or request.mask_bits))
    if request.sampling.adjusts:
        raise InvalidRequest(
            "forward: a sampler with penalties or logit_bias goes with generate and verify; forward has bias="
        )
    check_draws_of_all("forward", request.sampling)


def check_mask_allows(allows: bool) -> None:
    """Raises InvalidRequest unless a mask allows some token."""
    if not allows:
        raise InvalidRequest("mask must allow at least one token")


def _check_bias(tokens: Sequence[int], values: Sequence[float]) -> None:
    if len(tokens) != len(values):
        raise InvalidRequest(f"bias: {len(tokens)} tokens but {len(values)} values")
    check_ids("bias", tokens)
    if len(set(tokens)) < len(tokens):
        raise InvalidRequest("bias names a token twice")
    for token, value in zip(tokens, values, strict=True):
        if not abs(value) <= LARGEST_FLOAT32:
            raise InvalidRequest(f"bias[{token}] must be a finite float32 (forbid a token with mask), not {value!r}")


@dataclass(frozen=True)
class TokenLogprobs:
    """One entry per token, and the context's new length."""

    tokens: list[TokenLogprob]
    length: int


@dataclass(frozen=True)
class Embeddings:
    """One entry per input: vectors of ``size`` numbers, packed behind each other as in ``floats.py``.

    ``prompt_tokens``: the tokens of all inputs, with those that the runtime puts before a text.
    """

    size: int
    packed: list[str]
    prompt_tokens: int = 0


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


def check_prompt_logprobs(request: PromptLogprobs) -> None:
    """Raises InvalidRequest, which names the field, for what no model could score."""
    if not request.tokens:
        raise InvalidRequest("prompt_logprobs needs at least one token")
    check_ids("tokens", request.tokens)
    check_whole("top", request.top, 0)


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


def check_embed(request: Embed) -> None:
    """Raises InvalidRequest or LimitExceeded, which name the field, for a request that no model could answer."""
    if request.pooling not in POOLINGS:
        raise InvalidRequest(
            f"pooling must be {', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}, not {shown(request.pooling)}"
        )
    if bool(request.texts) == bool(request.tokens):
        raise InvalidRequest("embed needs texts or tokens, and not both")
    count = len(request.texts) + len(request.tokens)
    if count > MAX_INPUTS:
        raise LimitExceeded(
            f"embed: {count} inputs; {MAX_INPUTS} are allowed", limit="embed_inputs", value=MAX_INPUTS,
            raise_with="several calls",
        )  # fmt: skip
    for at, tokens in enumerate(request.tokens):
        check_ids(f"inputs[{at}]", tokens)
        check_input(at, tokens)


def check_input(at: int, tokens: Sequence[int]) -> None:
    """Raises InvalidRequest for an input without a token."""
    if not tokens:
        raise InvalidRequest(f"inputs[{at}] has no token")
