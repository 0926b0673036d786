"""Answers a request when its constraint is compiled: at once if it is known or trivial, else when the queue is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inferd import protocol as p
from inferd_grammar import Compiled, GrammarError
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.constraints.compile_queue import refused
from inferd_runtime.session.constraints.conversion import to_grammar
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
    with grammar_errors():
        grammar = to_grammar(constraint)
        ready = model.grammars.compile if state.compiles is None else model.grammars.find
        compiled = ready(grammar, state.tenant)
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
    with grammar_errors():
        forget = state.compiles.submit(state.tenant, model.grammars, grammar, done)
    if hold is not None:
        hold.user = call
    state.waiting[call.ticket] = stop


@contextmanager
def grammar_errors() -> Iterator[None]:
    """Raises ConstraintError or LimitExceeded where the body raises GrammarError."""
    try:
        yield
    except GrammarError as error:
        raise refused(error) from error
