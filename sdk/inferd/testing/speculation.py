"""How the fake runtime verifies drafts: against the text that it is about to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferd.protocol.errors import InvalidRequest
from inferd.protocol.speculation import MAX_DRAFT, SourceCount, Verification, VerifyDraft

AHEAD = 16
"""Tokens of a prediction that one step verifies."""


def walk(draft: Sequence[int], parents: Sequence[int], expected: Sequence[int]) -> list[int]:
    """The indices of the draft's tokens that agree with what comes, from the context on."""
    above = list(parents) or [node - 1 for node in range(len(draft))]
    path: list[int] = []
    for token in expected:
        at = path[-1] if path else -1
        found = next((node for node, guess in enumerate(draft) if above[node] == at and guess == token), None)
        if found is None:
            break
        path.append(found)
    return path


def check_tree(draft: Sequence[int], parents: Sequence[int], vocab_size: int) -> list[int]:
    """How deep each token of a draft stands. Raises InvalidRequest for a draft that is none."""
    if len(draft) > MAX_DRAFT:
        raise InvalidRequest(f"a draft holds at most {MAX_DRAFT} tokens")
    if parents and len(parents) != len(draft):
        raise InvalidRequest(f"{len(parents)} parents for {len(draft)} tokens")
    if any(not 0 <= token < vocab_size for token in draft):
        raise InvalidRequest("a token is outside the vocabulary")
    depths: list[int] = []
    for node, parent in enumerate(parents or range(-1, len(draft) - 1)):
        if not -1 <= parent < node:
            raise InvalidRequest(f"parents[{node}] is {parent}")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def prediction(predicted: Sequence[int], text: str, output: Sequence[int], made: int) -> list[int]:
    """What a prediction drafts behind ``made`` tokens of the output: what follows them in it, while all of them agree."""
    whole = list(predicted) or list(text.encode())
    return whole[made : made + AHEAD] if whole[:made] == list(output[:made]) else []


def counted(source: str, drafted: int, accepted: int) -> list[SourceCount]:
    """One source's part in a step; none where it drafted nothing."""
    return [SourceCount(source, drafted, 0, accepted)] if drafted else []


@dataclass
class _Saying:
    """A text that is said step by step: ``length`` tokens stood in the context after the last one, ``rest`` is to come."""

    length: int
    rest: list[int]


class FakeVerifying:
    """``speculation.verify``: a context says an output to its end, then end-of-text, and then begins with the next one."""

    def __init__(self, outputs: Callable[[list[int]], str], end: int, vocab_size: int) -> None:
        self._outputs = outputs
        self._end = end
        self._vocab_size = vocab_size
        self._saying: dict[int, _Saying] = {}

    def verify(self, request: VerifyDraft, tokens: list[int]) -> Verification:
        """Verify a draft behind ``tokens``, the context's own list, and extend it."""
        check_tree(request.tokens, request.parents, self._vocab_size)
        saying = self._saying.get(request.context)
        if saying is None or saying.length != len(tokens) or not saying.rest:
            saying = _Saying(len(tokens), [*self._outputs(list(tokens)).encode(), self._end])
        path = walk(request.tokens, request.parents, saying.rest[:-1])
        said, saying.rest = saying.rest[: len(path) + 1], saying.rest[len(path) + 1 :]
        tokens += said
        saying.length = len(tokens)
        self._saying[request.context] = saying
        return Verification(said[:-1], said[-1], path, len(tokens))
