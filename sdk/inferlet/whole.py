"""A generation that the runtime makes alone, where the program looks at none of its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from inferd.constraints import AllOf
from inferd.protocol import MOST_JOINED, CloseGenerate, ConstraintSpec, InferdError, NextSteps, Steps
from inferd.schema import OutputConstraint
from inferlet.grammar import Constraint, GrammarConstraint
from inferlet.sequence import HeldSequence

UNBOUNDED = 1 << 30
"""More tokens than any context has room for."""


def joined(constraints: Sequence[Constraint]) -> ConstraintSpec | None:
    """Return what the runtime holds a text to; None for nothing. Raises ValueError for a constraint that is the program's own."""
    wanted: list[OutputConstraint] = []
    for each in constraints:
        if not isinstance(each, GrammarConstraint) or not each.at_start:
            raise ValueError("a constraint of the program's own")
        if all(each.constraint.constraint != other.constraint for other in wanted):
            wanted.append(each.constraint)
    if not wanted:
        return None
    return wanted[0].constraint if len(wanted) == 1 else AllOf(wanted).constraint


async def rest_of(held: HeldSequence, generation: int) -> tuple[list[int], bool]:
    """Return all tokens of a generation that was started, and whether a stop token or a complete grammar ended them.

    The sequence holds them then. Raises what the runtime answers.
    """
    tokens: list[int] = []
    try:
        finish = ""
        while not finish:
            reply: Steps = await held.ask(NextSteps(generation, least=MOST_JOINED, joined=True))
            tokens += [token for step in reply.steps for token in step.tokens]
            finish = reply.finish
    except BaseException:
        with contextlib.suppress(InferdError):  # the runtime may have closed it with the error
            held.length = held.block(CloseGenerate(generation, len(tokens))).length
        raise
    held.length = (await held.ask(CloseGenerate(generation, len(tokens)))).length
    return tokens, finish == "stop"
