"""Calls a program's own constraint (``generate(constrain=...)``) for the mask of each step, and checks the mask."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from inferd.constraints import StepConstraint
from inferd.masks import TokenMask, checked_mask


class ConstraintRunner:
    """Asks a :class:`~inferd.constraints.StepConstraint` for the mask of each step."""

    def __init__(self, constraint: StepConstraint) -> None:
        self._constraint = constraint
        self._added: list[int] = []

    async def next_mask(self) -> TokenMask | None:
        """Return the allowed next tokens; None for all.

        Raises InvalidRequest for what is no token id, and whatever the constraint raises.
        """
        added, self._added = self._added, []
        answer = self._constraint.step(added)
        mask = await answer if inspect.isawaitable(answer) else answer
        return None if mask is None else checked_mask("the mask of step()", mask)

    def record(self, tokens: Sequence[int]) -> None:
        """Store the tokens that the step added, for the next call of ``step``."""
        self._added = list(tokens)
