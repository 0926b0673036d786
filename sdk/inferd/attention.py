"""``AttentionMask``: what new tokens attend to, as spans, for masks that are too large to be written out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from inferd.protocol.errors import InvalidRequest
from inferd.protocol.ranges import check_one_each, check_whole

T = TypeVar("T")
Spans: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AttentionMask:
    """What each token that ``forward(attention_mask=...)`` appends attends to: spans of indices in the context.

    A span is ``(start, end)``, without the token at ``end``. Every row is cut where its token stands: a token sees itself
    always, and nothing behind itself. ``nearest``: only so many tokens, itself included (None: all), and the first ``sink``.
    ``rows``: one list of spans for each token, instead (None: without). ``hidden``: what none of them sees.

    ``AttentionMask.window(512, sink=4).hide(100, 200)``
    """

    nearest: int | None = None
    sink: int = 0
    hidden: tuple[tuple[int, int], ...] = ()
    rows: tuple[tuple[tuple[int, int], ...], ...] | None = None

    @classmethod
    def causal(cls) -> AttentionMask:
        """Return the usual mask: each token sees all before it."""
        return cls()

    @classmethod
    def window(cls, nearest: int, *, sink: int = 0) -> AttentionMask:
        """Return a sliding window: each token sees the last ``nearest`` tokens, itself included, and the first ``sink``."""
        check_whole("nearest", nearest, 1)
        check_whole("sink", sink, 0)
        return cls(nearest, sink)

    @classmethod
    def spans(cls, rows: Iterable[Spans]) -> AttentionMask:
        """Return a mask with the spans that each token sees, one list per token. Raises InvalidRequest for what is no span."""
        return cls(rows=tuple(_merged(f"spans[{at}]", row) for at, row in enumerate(_listed("spans", rows))))

    @classmethod
    def runs(cls, rows: Iterable[Sequence[int]]) -> AttentionMask:
        """Return a mask of run lengths, one list per token: so many hidden, so many seen, hidden, ... from the context's start.

        What a row says of tokens behind its own is left out; what it does not speak of is hidden.
        """
        return cls(rows=tuple(_spans_of_runs(at, row) for at, row in enumerate(_listed("runs", rows))))

    def hide(self, start: int, end: int) -> AttentionMask:
        """Return the same mask without the tokens from ``start`` on, up to but not including ``end``."""
        return replace(self, hidden=_merged("hide", [*self.hidden, (start, end)]))

    def to_wire(self, start: int, count: int) -> list[list[int]]:
        """Return the run lengths of ``count`` tokens behind ``start`` others. Raises InvalidRequest for another number of
        rows.
        """
        if not count:
            raise InvalidRequest(
                "attention_mask speaks of the tokens that this pass appends, and it appends none: leave it out"
            )
        if self.rows is not None:
            check_one_each("attention_mask", "row", len(self.rows), count)
        return [self._runs(start + at, None if self.rows is None else self.rows[at]) for at in range(count)]

    def _runs(self, token: int, row: Spans | None) -> list[int]:
        """Return the run lengths of one token: hidden, seen, hidden, ..., up to itself."""
        runs, at = list[int](), 0
        for start, end in _without(self._seen(token) if row is None else row, self.hidden, token):
            runs += [start - at, end - start]
            at = end
        if at == token and runs:
            runs[-1] += 1
            return runs
        return [*runs, token - at, 1]

    def _seen(self, token: int) -> Spans:
        first = 0 if self.nearest is None else max(0, token + 1 - self.nearest)
        return [(0, token)] if first <= self.sink else [(0, self.sink), (first, token)]


def _without(spans: Spans, hidden: Spans, end: int) -> list[tuple[int, int]]:
    """Return the spans, merged and ascending, less the hidden ones, up to ``end``; none of them is empty."""
    left: list[tuple[int, int]] = []
    for start, stop in spans:
        at, stop = start, min(stop, end)
        for gap, behind in hidden:
            if behind <= at:
                continue
            if gap >= stop:
                break
            if gap > at:
                left.append((at, gap))
            at = behind
        if at < stop:
            left.append((at, stop))
    return left


def _merged(name: str, spans: Spans) -> tuple[tuple[int, int], ...]:
    """Return the spans, ascending, without empty ones, and as one where they touch. Raises InvalidRequest for what is no span."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(_checked(name, span) for span in _listed(name, spans)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return tuple(merged)


def _listed(name: str, items: Iterable[T]) -> Iterable[T]:
    if not isinstance(items, Iterable):
        raise InvalidRequest(f"{name} must be a list, not {items!r}")
    return items


def _checked(name: str, span: object) -> tuple[int, int]:
    whole = isinstance(span, (tuple, list)) and len(span) == 2 and all(type(each) is int for each in span)
    if not whole or not 0 <= span[0] <= span[1]:  # type: ignore[index]  # it has two numbers
        raise InvalidRequest(f"{name} must hold spans (start, end) of whole numbers, 0 <= start <= end, not {span!r}")
    return span[0], span[1]  # type: ignore[index]


def _spans_of_runs(at: int, row: Sequence[int]) -> tuple[tuple[int, int], ...]:
    if not isinstance(row, Sequence) or not all(type(run) is int and run >= 0 for run in row):
        raise InvalidRequest(f"runs[{at}] must hold whole numbers of at least 0, not {row!r}")
    spans, place = list[tuple[int, int]](), 0
    for number, run in enumerate(row):
        if number % 2:
            spans.append((place, place + run))
        place += run
    return _merged(f"runs[{at}]", spans)
