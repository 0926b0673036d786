"""Finished steps of a generation that wait for its reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from inferd.protocol import MOST_STEPS, Step

MAX_UNDELIVERED_STEPS = 16
"""A generation pauses while so many of its steps have not been taken, or twice as many as its reader asks for at a time."""

MOST_HELD = 2 * MOST_STEPS
"""Steps of one generation at the most, joined ones counted once."""


class StepQueue:
    """Steps in their order. A reader that asks for ``joined`` ones gets those in a row that have nothing but tokens and text as
    one, which is held as one.

    ``most``: so many may be held at a time; None: as many as the reader's questions allow.
    """

    def __init__(self, most: int | None = None) -> None:
        self._held: deque[list[Step]] = deque()
        """What is handed out as one step each."""
        self._count = 0
        self._most = most
        self.expect(1)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Step]:
        return map(_joined, self._held)

    def expect(self, least: int, *, joined: bool = False) -> None:
        """Note that the reader waits for ``least`` steps."""
        self._joined = joined
        self._least = least
        held = max(MAX_UNDELIVERED_STEPS, min(2 * least, MOST_HELD))
        self._pause_at(held if self._most is None else min(held, self._most), max(MAX_UNDELIVERED_STEPS, 2 * least))

    def run_ahead(self, steps: int) -> None:
        """Let the reader wait for so many steps, and be full with them."""
        self._least = steps
        self._pause_at(steps, steps)

    def _pause_at(self, held: int, count: int) -> None:
        self._most_held, self._most_count = held, count

    def full(self, coming: int = 0) -> bool:
        """True if the reader has to take some before there may be more; ``coming`` more are computed already."""
        return len(self._held) + coming >= self._most_held or self._count + coming >= self._most_count

    @property
    def enough(self) -> bool:
        """True if there is what the reader waits for, or as much as is held for it."""
        return self._count >= self._least or len(self._held) >= min(MOST_STEPS, self._most_held)

    def append(self, step: Step) -> None:
        """Add a step."""
        self._count += 1
        if self._joined and self._held and _is_plain(step) and _is_plain(self._held[-1][0]):
            self._held[-1].append(step)
        else:
            self._held.append([step])

    def take(self) -> list[Step]:
        """Remove all, and return them."""
        steps = list(self)
        self.clear()
        return steps

    def clear(self) -> None:
        """Remove all."""
        self._held.clear()
        self._count = 0


def _is_plain(step: Step) -> bool:
    return not (step.sources or step.logprobs or step.probes)


def _joined(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    tokens = [token for step in steps for token in step.tokens]
    return Step(tokens, "".join([step.text for step in steps]), joined=len(steps))
