"""``generate.*``: starting a generation, waiting for its steps, closing it."""

from __future__ import annotations

from dataclasses import replace

from inferd import protocol as p
from inferd_runtime.session.generation.start import start
from inferd_runtime.session.state import Call, SessionState


def next_steps(state: SessionState, call: Call) -> None:
    """Answer with all finished steps, as soon as there are as many as were asked for."""
    request: p.NextSteps = call.request
    p.check_next_steps(request)
    opened = state.generation(request.generation)
    opened.request_steps(request)

    def deliver() -> None:
        first = opened.delivered_steps + 1
        reply = opened.finished_steps()
        if reply is None:
            return
        state.waiting.pop(call.ticket, None)
        opened.generation.listener = None
        if isinstance(reply, p.InferdError):
            return call.respond(reply)
        ended = reply.finish in ("stop", "length")
        usage = [state.usage()] if ended else []
        context = [_closed(state, request.generation)] if ended and request.closes else []
        call.respond(replace(reply, usage=usage, context=context))
        state.publish(request.generation, first, reply.steps)

    def stop() -> None:
        opened.generation.listener = None
        call.respond(p.Cancelled("the operation was cancelled"))

    state.waiting[call.ticket] = stop
    opened.generation.listener = deliver
    deliver()


def close(state: SessionState, call: Call) -> None:
    """Close a generation and answer with the state of its context."""
    request: p.CloseGenerate = call.request
    call.respond(_closed(state, request.generation, request.keep))


def _closed(state: SessionState, generation: int, keep: int = -1) -> p.ContextState:
    """Close a generation, and return the state of its context."""
    opened = state.generation(generation)
    opened.close(keep)
    if opened.generation.listener is not None:
        opened.generation.listener()
    state.drop_generation(generation)
    state.count(opened.usage())
    context = opened.generation.context
    handle = next((handle for handle, entry in state.contexts.items() if entry.context is context), None)
    return state.context_state(handle) if handle is not None else p.ContextState(0, 0, 0)


HANDLERS = {p.StartGenerate: start, p.NextSteps: next_steps, p.CloseGenerate: close}
