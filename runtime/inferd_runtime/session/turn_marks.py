"""Where the conversation of a context stood, by the context's length then."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from inferd_runtime.session.transcript import Turn

TURNS = tuple(Turn(bool(code & 1), bool(code & 2), bool(code & 4)) for code in range(8))


class TurnMarks:
    """Turns at ascending lengths, the first at 0. They take nine bytes each: there may be one behind every token."""

    def __init__(self, marks: Iterable[tuple[int, Turn]] = ((0, Turn()),)) -> None:
        self._lengths = array("q")
        self._codes = bytearray()
        for length, turn in marks:
            self._add(length, turn)

    def __iter__(self) -> Iterator[tuple[int, Turn]]:
        return zip(self._lengths, map(TURNS.__getitem__, self._codes), strict=True)

    @property
    def last(self) -> Turn:
        """The turn at the greatest length."""
        return TURNS[self._codes[-1]]

    def set(self, length: int, turn: Turn) -> None:
        """Note that the conversation stands at ``turn`` from ``length`` on, instead of all that was noted there and later."""
        self._keep(bisect_left(self._lengths, length))
        self._add(length, turn)

    def cut(self, length: int) -> None:
        """Forget what was noted beyond ``length``."""
        self._keep(bisect_right(self._lengths, length))

    def copy(self, length: int) -> TurnMarks:
        """Return a copy without what was noted beyond ``length``."""
        count, child = bisect_right(self._lengths, length), TurnMarks(())
        child._lengths, child._codes = self._lengths[:count], self._codes[:count]
        return child

    def _add(self, length: int, turn: Turn) -> None:
        self._lengths.append(length)
        self._codes.append(turn.empty | turn.answering << 1 | turn.asked << 2)

    def _keep(self, count: int) -> None:
        del self._lengths[count:]
        del self._codes[count:]
