"""Calls a program's own constraint (``generate(constrain=...)``) for the mask of each step, and checks the mask."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from inferd.constraints import StepConstraint
from inferd.masks import TokenMask, checked_mask
from inferd.protocol.errors import ConstraintError


class ConstraintRunner:
    """Asks a :class:`~inferd.constraints.StepConstraint` for the mask of each step."""

    def __init__(self, constraint: StepConstraint) -> None:
        self._constraint = constraint
        self._added: list[int] = []

    async def next_mask(self) -> TokenMask | None:
        """Return the allowed next tokens; None for all.

        Raises ConstraintError for an empty mask, InvalidRequest for what is no token id, and whatever the constraint raises.
        """
        added, self._added = self._added, []
        answer = self._constraint.step(added)
        mask = await answer if inspect.isawaitable(answer) else answer
        if mask is None:
            return None
        allowed = checked_mask("the mask of step()", mask)
        if not allowed:
            raise ConstraintError("step() allows no token: include end-of-text where the text may end")
        return allowed

    def record(self, tokens: Sequence[int]) -> None:
        """Store the tokens that the step added, for the next call of ``step``."""
        self._added = list(tokens)
