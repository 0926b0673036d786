"""``generate.*``: starting a generation, waiting for its steps, closing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

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
        usage = [state.usage()] if reply.finish in ("stop", "length") else []
        steps = joined(reply.steps) if request.joined else reply.steps
        call.respond(replace(reply, steps=steps, usage=usage))
        state.publish(request.generation, first, reply.steps)

    def stop() -> None:
        opened.generation.listener = None
        call.respond(p.Cancelled("the operation was cancelled"))

    state.waiting[call.ticket] = stop
    opened.generation.listener = deliver
    deliver()


def joined(steps: Sequence[p.Step]) -> list[p.Step]:
    """Return the steps, those in a row that have nothing but tokens and text as one: each costs its reader as much time."""
    found: list[p.Step] = []
    for plain, group in groupby(steps, lambda step: not (step.sources or step.logprobs or step.probes)):
        run = list(group)
        found += [_one_of(run)] if plain else run
    return found


def _one_of(run: Sequence[p.Step]) -> p.Step:
    tokens = [token for step in run for token in step.tokens]
    return p.Step(tokens, "".join([step.text for step in run]), joined=len(run))


def close(state: SessionState, call: Call) -> None:
    """Close a generation and answer with the state of its context."""
    request: p.CloseGenerate = call.request
    opened = state.generation(request.generation)
    opened.close(request.keep)
    if opened.generation.listener is not None:
        opened.generation.listener()
    del state.generations[request.generation]
    state.count(opened.usage())
    context = opened.generation.context
    handle = next((handle for handle, entry in state.contexts.items() if entry.context is context), None)
    call.respond(state.context_state(handle) if handle is not None else p.ContextState(0, 0, 0))


HANDLERS = {p.StartGenerate: start, p.NextSteps: next_steps, p.CloseGenerate: close}
