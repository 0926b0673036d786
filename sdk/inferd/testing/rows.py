"""What the fake runtime answers about rows: its model likes the end of text a little better than all other tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferd.masks import TokenMask
from inferd.protocol import Forward, Probe, ProbeResult, RowResult, TokenLogprob
from inferd.protocol.floats import pack_floats

STATE_SIZE = 4


class FakeRows:
    """``favourite`` has logit 1, everything else 0, wherever a row stands."""

    def __init__(self, vocab_size: int, favourite: int) -> None:
        self._plain = [0.0] * vocab_size
        self._plain[favourite] = 1.0

    def results(self, request: Forward) -> list[RowResult]:
        """The rows of a forward pass."""
        logits = self._edited(request)
        logprobs = _log_softmax(logits)
        order = _most_likely(logprobs)
        entropy = -sum(math.exp(each) * each for each in logprobs if each > -math.inf)
        found = [_read(probe, logits, logprobs) for probe in request.probes]
        best = order[: request.top]
        return [
            RowResult(index, order[0], best, [logprobs[token] for token in best], entropy, found)
            for index in request.at or [len(request.tokens) - 1]
        ]

    def scores(self, tokens: Sequence[int], top: int, first: bool) -> list[TokenLogprob]:
        """Log-probabilities of a prompt; ``first``: nothing stands before it."""
        logprobs = _log_softmax(self._plain)
        order = _most_likely(logprobs)
        best = order[:top]
        scored = [
            TokenLogprob(token, logprobs[token], 1 + (token != order[0]), best, [logprobs[each] for each in best])
            for token in tokens
        ]
        return [TokenLogprob(tokens[0]), *scored[1:]] if first else scored

    def _edited(self, request: Forward) -> list[float]:
        logits = list(self._plain)
        for token, value in zip(request.bias_tokens, request.bias_values, strict=True):
            logits[token] += value
        if request.mask is None and not request.mask_bits:
            return logits
        allowed = TokenMask.from_wire(request.mask or [], request.mask_bits)
        return [value if token in allowed else -math.inf for token, value in enumerate(logits)]


def embed(tokens: Sequence[int], pooling: str, normalize: bool) -> str:
    """The packed vectors of one input: a token's state is its id's last four digits to base 4."""
    states = [[float(token // STATE_SIZE**place % STATE_SIZE) for place in range(STATE_SIZE)] for token in tokens]
    match pooling:
        case "mean":
            states = [[sum(column) / len(states) for column in zip(*states, strict=True)]]
        case "last":
            states = states[-1:]
        case "cls":
            states = states[:1]
    scaled = [_normalized(state) if normalize else state for state in states]
    return pack_floats([value for state in scaled for value in state])


def _normalized(state: Sequence[float]) -> list[float]:
    length = math.hypot(*state) or 1.0
    return [value / length for value in state]


def _log_softmax(logits: Sequence[float]) -> list[float]:
    total = math.log(sum(math.exp(value) for value in logits))
    return [value - total for value in logits]


def _most_likely(logprobs: Sequence[float]) -> list[int]:
    """Token ids, the most likely first, without those that are impossible."""
    possible = (token for token, value in enumerate(logprobs) if value > -math.inf)
    return sorted(possible, key=lambda token: -logprobs[token])


def _read(probe: Probe, logits: Sequence[float], logprobs: Sequence[float]) -> ProbeResult:
    match probe.kind:
        case "logits":
            return ProbeResult(pack_floats(logits))
        case "distribution":
            heated = _log_softmax([value / probe.temperature for value in logprobs])
            best = _most_likely(heated)[: probe.k or None]
            return ProbeResult(pack_floats([math.exp(heated[token]) for token in best]), best)
        case "logprobs":
            return ProbeResult(pack_floats([logprobs[token] for token in probe.tokens]), list(probe.tokens))
    return ProbeResult(pack_floats([-sum(math.exp(each) * each for each in logprobs if each > -math.inf)]))
