"""A generation of the fake runtime: a text that is already known, handed out step by step."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

from inferd.masks import TokenMask
from inferd.protocol import ConstraintError, NextSteps, SourceCount, StartGenerate, Step

EOS = 256
AHEAD = 16
"""Tokens of a prediction that one step verifies."""


class ScriptedGeneration:
    """Hands out ``text`` behind ``tokens``, the context's own list, which it extends.

    ``sizes``: tokens of each step, used round and round. ``finish``: why it ends when :attr:`ended`.
    """

    def __init__(self, request: StartGenerate, tokens: list[int], text: str, sizes: Sequence[int]) -> None:
        whole = text.encode()
        whole = whole[: min((at for stop in request.stop if (at := whole.find(stop.encode())) >= 0), default=None)]
        self.request = request
        self.output = list(whole[: request.max_tokens])
        self.finish = "length" if len(whole) > request.max_tokens else "stop"
        self._start = len(tokens)
        self._tokens = tokens
        self._made = 0
        self._sizes = itertools.cycle(sizes)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end_due = request.program_constraint and self.finish == "stop"  # its mask has to allow end-of-text, too

    @property
    def ended(self) -> bool:
        """True if no step is left."""
        return self._made == len(self.output) and not self._end_due

    def steps(self, request: NextSteps, count: int) -> list[Step]:
        """Return the steps that answer a request: ``count`` of them, or one if the program drafts or masks by itself."""
        if self.request.program_speculation:
            return [self._drafted("program", request.draft, request.parents)]
        if self.request.program_constraint:
            return [self._masked(request)]
        return [self._own() for _ in range(count) if not self.ended]

    def keep(self, count: int) -> None:
        """Leave the first ``count`` tokens in the context; all if it is -1."""
        if count >= 0:
            del self._tokens[self._start + count :]

    def _own(self) -> Step:
        predicted = self.request.predicted or list(self.request.predicted_text.encode())
        draft = predicted[self._made : self._made + AHEAD]
        if draft and predicted[: self._made] == self.output[: self._made]:
            return self._drafted("predicted", draft, [])
        size = min(next(self._sizes), len(self.output) - self._made)
        return self._step(size, "ngram", size - 1, size - 1)

    def _masked(self, request: NextSteps) -> Step:
        token = [*self.output[self._made :], EOS][0]
        free = request.mask is None and not request.mask_bits
        if not free and token not in TokenMask.from_wire(request.mask or [], request.mask_bits):
            raise ConstraintError(f"the mask does not allow token {token}, which comes next in the output")
        if token == EOS:
            self._end_due = False
            return Step([])
        return self._step(1)

    def _drafted(self, source: str, draft: Sequence[int], parents: Sequence[int]) -> Step:
        accepted = agreeing(draft, parents, self.output[self._made :])
        return self._step(accepted + 1, source, len(draft), accepted)

    def _step(self, size: int, source: str = "", drafted: int = 0, accepted: int = 0) -> Step:
        tokens = self.output[self._made : self._made + size]
        self._made += len(tokens)
        self._tokens += tokens
        with_end = self.ended and self.finish == "stop"
        return Step(
            tokens,
            self._decoder.decode(bytes(tokens), final=self.ended),
            drafted,
            accepted,
            truncated=max(0, 1 + accepted - len(tokens) - with_end),
            sources=[SourceCount(source, drafted, 0, accepted)] if drafted else [],
        )


def agreeing(draft: Sequence[int], parents: Sequence[int], output: Sequence[int]) -> int:
    """Return how many tokens of a draft agree with the output: a chain, or a tree if there are parents."""
    above = parents or range(-1, len(draft) - 1)
    at = -1
    for count, token in enumerate(output):
        below = [node for node, guess in enumerate(draft) if above[node] == at and guess == token]
        if not below:
            return count
        at = below[0]
    return len(output)
