"""One program's or script's open handles: protocol operations become engine calls. Synchronous; answers may come later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferd import protocol as p
from inferd_grammar import GrammarFailure
from inferd_runtime.engine.jobs.boundary import typed_error
from inferd_runtime.session.operations import (
    adapters,
    chat,
    contexts,
    embeddings,
    generation,
    grammars,
    models,
    passes,
    snapshots,
)
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, Respond, SessionState

Handler = Callable[[SessionState, Call], None]
HANDLERS: Mapping[type[Any], Handler] = {
    **models.HANDLERS,
    **adapters.HANDLERS,
    **chat.HANDLERS,
    **contexts.HANDLERS,
    **passes.HANDLERS,
    **embeddings.HANDLERS,
    **generation.HANDLERS,
    **grammars.HANDLERS,
    **snapshots.HANDLERS,
}


class Session:
    """Turns requests into engine calls, one handler per operation. Closing it releases everything that it opened."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    @property
    def tenant(self) -> str:
        """Return the tenant that the session belongs to."""
        return self._state.tenant

    @property
    def held(self) -> bool:
        """True while no further request may be handled: one is carried out beside the step loop, and the order is kept."""
        return self._state.held

    def handle(self, ticket: int, request: Any, respond: Respond) -> None:
        """Carry out one request. Every request is answered exactly once."""
        handler = HANDLERS.get(type(request))
        try:
            if handler is None:
                raise p.InvalidRequest(f"{type(request).op!r} is not available here")
            handler(self._state, Call(ticket, request, respond))
        except (p.InferdError, GrammarFailure) as error:
            respond(typed_error(error))

    def cancel(self, ticket: int) -> None:
        """Answer a waiting request with Cancelled. One that is already answered is left alone."""
        stop = self._state.waiting.pop(ticket, None)
        if stop is not None:
            stop()

    def usage(self) -> p.Usage:
        """Return what it has used so far."""
        return self._state.usage()

    def close(self) -> p.Usage:
        """Release everything and return the usage. Waiting requests are answered with Cancelled."""
        for ticket in list(self._state.waiting):
            self.cancel(ticket)
        for opened in self._state.generations.values():
            opened.close()
        for handle in list(self._state.contexts):
            self._state.drop_context(handle)
        for uploads, number in self._state.uploads:
            uploads.discard(number)
        self._state.leave()
        return self._state.usage()

    def owned_tables(self, model: ServedModel | None = None) -> list[list[int]]:
        """Return the pages of every open context (of one model, if given), for the pool's integrity check."""
        entries = self._state.contexts.values()
        return [entry.context.table.pages for entry in entries if model in (None, entry.model)]
