"""Answering a request when its constraint is compiled: at once where that takes no time, else when the queue is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferd import protocol as p
from inferd_grammar import Compiled, GrammarError
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.constraints.compile_queue import refused
from inferd_runtime.session.constraints.conversion import to_grammar
from inferd_runtime.session.generation.open_generation import compile_constraint, find_compiled
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, SessionState, guarded


def when_compiled(
    state: SessionState,
    call: Call,
    model: ServedModel,
    constraint: p.ConstraintSpec,
    reply: Callable[[Compiled], Any],
    *,
    hold: CachedSequence | None = None,
) -> None:
    """Answer with ``reply(compiled)``. Until then ``hold`` belongs to the request; a cancel gives it back.

    Raises ConstraintError or LimitExceeded for what is refused without compiling it.
    """
    compiled = find_compiled(constraint, model)
    if compiled is None and state.compiles is None:
        compiled = compile_constraint(constraint, model)
    if compiled is not None:
        return call.respond(reply(compiled))

    def give_back() -> None:
        if hold is not None:
            hold.user = None

    def done(outcome: Compiled | p.InferdError) -> None:
        del state.waiting[call.ticket]
        give_back()
        call.respond(guarded(reply, outcome) if isinstance(outcome, Compiled) else outcome)

    def stop() -> None:
        forget()
        give_back()
        call.respond(p.Cancelled("the operation was cancelled"))

    assert state.compiles is not None
    try:
        forget = state.compiles.submit(state.tenant, model.grammars, to_grammar(constraint), done)
    except GrammarError as error:
        raise refused(error) from error
    if hold is not None:
        hold.user = call
    state.waiting[call.ticket] = stop
