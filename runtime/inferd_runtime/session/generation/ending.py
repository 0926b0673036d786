"""Ending in time: what keeps a generation's text within its tokens, where that is asked for."""

from __future__ import annotations

from dataclasses import replace

from inferd import protocol as p
from inferd_grammar import Compiled, EndPlanner
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence


def settled_ending(
    request: p.StartGenerate, compiled: Compiled, context: CachedSequence, reserved: int = 0
) -> p.StartGenerate:
    """Return the request with what "complete_or_cut" comes to: "complete" where an end is found and fits, else "cut".
    One that names the tokens that it allows is always cut.

    ``reserved``: tokens that are needed beside a constrained text that may not be empty.
    """
    if request.sampling.allowed_tokens:
        return replace(request, on_length="cut")  # an end may need others than these
    if request.on_length != "complete_or_cut":
        return request
    planner, room = compiled.planner(), context.max_length - len(context.tokens)
    fits = planner is not None and (not planner.needed or planner.needed + reserved <= min(room, request.max_tokens))
    return replace(request, on_length="complete" if fits else "cut")


def end_planner(
    request: p.StartGenerate, compiled: Compiled, context: CachedSequence, reserved: int = 0
) -> EndPlanner | None:
    """Return what steers the text to its nearest end in time; None where the text may be cut.

    Where masks may lead to a place behind which nothing is legal, a text that may be cut is kept from such places, too.
    Raises ConstraintError if no end of the constraint is found, Truncated if the shortest one that was found does not fit.
    ``reserved``: as in :func:`settled_ending`.
    """
    may_be_cut = request.on_length == "cut"
    planner = compiled.planner() if not may_be_cut or compiled.may_meet_dead_ends else None
    if planner is None or may_be_cut:
        if request.on_length == "complete":
            raise p.ConstraintError('no end of this constraint was found, so on_length="complete" cannot be kept')
        return planner
    needed, room = planner.needed and planner.needed + reserved, context.max_length - len(context.tokens)
    if needed > room:
        message = f"the context has room for {room} tokens, and the shortest text under the constraint has {needed}"
        advice = "a model with a longer context, or a shorter prompt"
        raise p.Truncated(message, limit="max_context", raise_with=advice)
    if needed > request.max_tokens:
        message = f"max_tokens={request.max_tokens} is less than the {needed} of the shortest text under the constraint"
        raise p.Truncated(message, limit="max_tokens", value=request.max_tokens, raise_with="max_tokens=...")
    return planner
