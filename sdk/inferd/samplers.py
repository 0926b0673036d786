"""Samplers from the literature, as stages that a program composes: ``generate(samplers.chain(Typical(0.9), seed=7))``.

Each stage changes the scores of the candidates, or takes some out (a score of -inf); what is left is drawn from. They run in the
program, by :class:`~inferd.CustomSampler`: a round trip per token, with constraints, penalties and stops as ever, and without
speculation. Scores are natural log-probabilities up to a constant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from inferd.context import Context
from inferd.custom_sampler import Candidates, ChooseToken, CustomSampler
from inferd.probes import Logprobs
from inferd.protocol import InvalidRequest
from inferd.protocol.ranges import check_number, check_whole

__all__ = ["Contrastive", "Dry", "Guided", "Mirostat", "Stage", "Typical", "Xtc", "chain"]
Scores: TypeAlias = Sequence[float]
Apply: TypeAlias = Callable[[Candidates, Scores], "Scores | Awaitable[Scores]"]
OUT = -math.inf
WIDE = 1024
"""Candidates by default: what lies behind them has next to no probability with any model's usual text."""


class Stage(Protocol):
    """Something that changes the scores of candidates."""

    def start(self) -> Apply:
        """Return the function that is called for each token of one generation. Its state is that generation's."""


def chain(*stages: Stage, temperature: float = 1.0, k: int = WIDE, seed: int | None = None) -> CustomSampler:
    """Return the sampler that applies the stages in their order, then divides by the temperature (0: the best one), and draws.

    ``k``: how many candidates there are, the most likely ones; 0: all. What a stage says of the whole distribution is exact with
    ``k=0``, and otherwise of those ``k``.
    """
    check_number("temperature", temperature, 0.0, 1e9)
    for stage in stages:
        if isinstance(stage, type) or not hasattr(stage, "start"):
            raise InvalidRequest(f"a stage of a chain must be one such as Typical(0.9), not {stage!r}")

    def start() -> ChooseToken:
        running = [stage.start() for stage in stages]

        async def choose(candidates: Candidates) -> int:
            scores: Scores = candidates.logprobs
            for apply in running:
                changed = apply(candidates, scores)
                scores = await changed if isinstance(changed, Awaitable) else changed
            return drawn(candidates, scores, temperature)

        return choose

    return CustomSampler(start, k).seeded(seed)


def drawn(candidates: Candidates, scores: Scores, temperature: float) -> int:
    """Return the token that is drawn by its scores; of equal ones at temperature 0 the first."""
    best = max(scores)
    if temperature == 0:
        return candidates.tokens[list(scores).index(best)]
    return candidates.draw([math.exp((score - best) / temperature) for score in scores])


def probabilities(scores: Scores) -> list[float]:
    """Return the probabilities of the candidates among themselves."""
    best = max(scores)
    shares = [math.exp(score - best) for score in scores]
    total = math.fsum(shares)
    return [share / total for share in shares]


@dataclass(frozen=True)
class Typical:
    """Locally typical sampling: the tokens whose surprise is nearest to the entropy, until they reach ``p`` together.

    Meister, Pimentel, Wiher, Cotterell: "Locally Typical Sampling" (TACL 2023), as transformers has it.
    """

    p: float = 0.9

    def __post_init__(self) -> None:
        check_number("typical p", self.p, 0.0, 1.0)

    def start(self) -> Apply:
        """See :class:`Stage`."""
        return self._apply

    def _apply(self, candidates: Candidates, scores: Scores) -> Scores:
        if scores is candidates.logprobs:  # nothing came before: the whole distribution's entropy is known
            shares, entropy = [math.exp(score) for score in scores], candidates.entropy
        else:
            shares = probabilities(scores)
            entropy = -math.fsum(share * math.log(share) for share in shares if share > 0)
        away = [abs(-math.log(share) - entropy) if share > 0 else math.inf for share in shares]
        order, reached = sorted(range(len(away)), key=away.__getitem__), 0.0
        bound = away[order[-1]]
        for at in order:
            reached += shares[at]
            if reached >= self.p:
                bound = away[at]
                break
        return [score if distance <= bound else OUT for score, distance in zip(scores, away, strict=True)]


@dataclass(frozen=True)
class Xtc:
    """Exclude top choices: with ``probability``, of the tokens that have at least ``threshold`` all but the least likely go.

    By its author p-e-w for text-generation-webui (pull request 6335, 2024), as llama.cpp has it. Whether it happens is drawn by
    the candidates' own random numbers, so a seed repeats it.
    """

    probability: float = 0.5
    threshold: float = 0.1

    def __post_init__(self) -> None:
        check_number("xtc probability", self.probability, 0.0, 1.0)
        check_number("xtc threshold", self.threshold, 0.0, 1.0)

    def start(self) -> Apply:
        """See :class:`Stage`."""
        return self._apply

    def _apply(self, candidates: Candidates, scores: Scores) -> Scores:
        if candidates.random().random() >= self.probability:
            return scores
        shares = probabilities(scores)
        top = [at for at, share in enumerate(shares) if share >= self.threshold]
        if len(top) < 2:
            return scores
        last = min(reversed(top), key=shares.__getitem__)
        out = set(top) - {last}
        return [OUT if at in out else score for at, score in enumerate(scores)]


@dataclass(frozen=True)
class Mirostat:
    """Mirostat 2.0: cuts off what is more surprising than a bound, which moves so that what is written has ``tau`` bits each.

    Basu, Ramachandran, Keskar, Varshney: "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity" (ICLR
    2021), in the second version, as llama.cpp has it: the bound begins at 2 ``tau`` and moves by ``eta`` times the error. At
    least one token stays. Use it as the last stage, with a temperature of 1.
    """

    tau: float = 5.0
    eta: float = 0.1

    def __post_init__(self) -> None:
        check_number("mirostat tau", self.tau, 0.0, 100.0)
        check_number("mirostat eta", self.eta, 0.0, 10.0)

    def start(self) -> Apply:
        """See :class:`Stage`."""
        return _MirostatState(self).apply


class _MirostatState:
    def __init__(self, stage: Mirostat) -> None:
        self._stage = stage
        self._bound = 2 * stage.tau
        self._offered: dict[int, float] = {}

    def apply(self, candidates: Candidates, scores: Scores) -> Scores:
        self._learn(candidates)
        surprise = [-math.log2(share) if share > 0 else math.inf for share in probabilities(scores)]
        least = min(surprise)
        kept = [score if bits <= max(self._bound, least) else OUT for score, bits in zip(scores, surprise, strict=True)]
        self._offered = dict(zip(candidates.tokens, probabilities(kept), strict=True))
        return kept

    def _learn(self, candidates: Candidates) -> None:
        """Move the bound by the surprise of the token that was written last, if it was drawn here."""
        share = self._offered.get(candidates.context[-1], 0.0) if candidates.generated else 0.0
        if share > 0:
            self._bound -= self._stage.eta * (-math.log2(share) - self._stage.tau)


@dataclass(frozen=True)
class Dry:
    """Don't repeat yourself: a token that would go on with a repetition of n tokens loses ``multiplier * base ** (n - allowed)``.

    Only repetitions of at least ``allowed`` tokens count, over the context's last ``window`` tokens, and none runs over one of
    the tokens ``breakers``. By its author p-e-w for text-generation-webui (pull request 5677, 2024), as llama.cpp has it.
    """

    multiplier: float = 0.8
    base: float = 1.75
    allowed: int = 2
    breakers: Iterable[int] = ()
    window: int = 4096
    longest: int = field(default=64, repr=False)

    def __post_init__(self) -> None:
        check_number("dry multiplier", self.multiplier, 0.0, 100.0)
        check_number("dry base", self.base, 1.0, 100.0)
        check_whole("dry allowed", self.allowed, 1)
        check_whole("dry window", self.window, 1)
        check_whole("dry longest", self.longest, 1, 256)
        object.__setattr__(self, "breakers", frozenset(self.breakers))

    def start(self) -> Apply:
        """See :class:`Stage`."""
        return _DryState(self).apply


class _DryState:
    def __init__(self, stage: Dry) -> None:
        self._stage = stage
        self._breakers = frozenset(stage.breakers)
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._read = 0

    def apply(self, candidates: Candidates, scores: Scores) -> Scores:
        repeated = self._repeated(candidates.context)
        stage = self._stage
        return [
            score - stage.multiplier * stage.base ** (length - stage.allowed)
            if (length := repeated.get(token, 0)) >= stage.allowed
            else score
            for token, score in zip(candidates.tokens, scores, strict=True)
        ]

    def _repeated(self, context: Sequence[int]) -> dict[int, int]:
        """Return, for each token that went on with what the context ends with, the length of the longest such repetition."""
        end = len(context)
        for at in range(self._read, end - 1):  # where each token stands, except the last one
            self._places[context[at]].append(at)
        self._read = max(self._read, end - 1)
        found: dict[int, int] = {}
        first = max(0, end - self._stage.window)
        for at in reversed(self._places.get(context[-1], ()) if end else ()):
            if at < first:
                break
            following = context[at + 1]
            found[following] = max(found.get(following, 0), self._length(context, at, first))
        return found

    def _length(self, context: Sequence[int], at: int, first: int) -> int:
        """Return how many tokens up to ``at`` are those that the context ends with."""
        length, end = 0, len(context) - 1
        while (
            length < self._stage.longest
            and at - length >= first
            and context[at - length] == context[end - length]
            and context[at - length] not in self._breakers
        ):
            length += 1
        return length


class _Beside:
    """Another context that gets the same tokens, and the log-probabilities of candidates behind it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fed: int | None = None

    async def logprobs(self, candidates: Candidates) -> Sequence[float]:
        """Give it the tokens that were written since, and return the candidates' log-probabilities there."""
        new = [] if self._fed is None else candidates.context[self._fed :]
        self._fed = candidates.position
        result = await self._context.forward(new, probes=[Logprobs(candidates.tokens)])
        return result.rows[0].probes[0].values


def _checked_context(context: Context) -> None:
    if not isinstance(context, Context):
        raise InvalidRequest(f"context must be a Context, not {context!r}")


@dataclass(frozen=True)
class Guided:
    """Classifier-free guidance: scores move away from what another context makes likely: ``other + scale * (own - other)``.

    Sanchez, Fan, Spangher, Levi, Ammanamanchi, Biderman: "Stay on topic with Classifier-Free Guidance" (2023); as
    ``UnbatchedClassifierFreeGuidanceLogitsProcessor`` of transformers has it. ``context`` holds the same conversation without the
    prompt, or with a negative one, up to where the text begins (``cue()`` it); each token of the text is appended to it. A
    ``scale`` of 1 changes nothing.
    """

    context: Context
    scale: float = 1.5

    def __post_init__(self) -> None:
        _checked_context(self.context)
        check_number("scale", self.scale, -100.0, 100.0)

    def start(self) -> Apply:
        """See :class:`Stage`."""
        beside = _Beside(self.context)

        async def apply(candidates: Candidates, scores: Scores) -> Scores:
            other = await beside.logprobs(candidates)
            return [low + self.scale * (own - low) for own, low in zip(scores, other, strict=True)]

        return apply


@dataclass(frozen=True)
class Contrastive:
    """Contrastive decoding: ``(1 + beta) * own - beta * amateur``, of the tokens at least ``alpha`` times as likely as the best.

    Li, Holtzman, Fried, Liang, Eisner, Hashimoto, Zettlemoyer, Lewis: "Contrastive Decoding" (ACL 2023), scored as in O'Brien,
    Lewis: "Contrastive Decoding Improves Reasoning in Large Language Models" (2023). ``amateur`` is a context of a smaller model
    with the same vocabulary, or of the same one with a worse prompt, up to where the text begins; it gets each token of the text.
    """

    amateur: Context
    alpha: float = 0.1
    beta: float = 0.5

    def __post_init__(self) -> None:
        _checked_context(self.amateur)
        check_number("alpha", self.alpha, 0.0, 1.0)
        check_number("beta", self.beta, 0.0, 100.0)

    def start(self) -> Apply:
        """See :class:`Stage`."""
        beside = _Beside(self.amateur)

        async def apply(candidates: Candidates, scores: Scores) -> Scores:
            amateur = await beside.logprobs(candidates)
            least = max(scores) + (math.log(self.alpha) if self.alpha > 0 else OUT)
            return [
                (1 + self.beta) * own - self.beta * weak if own >= least else OUT
                for own, weak in zip(scores, amateur, strict=True)
            ]

        return apply
