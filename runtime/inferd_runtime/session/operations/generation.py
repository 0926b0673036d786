"""``generate.*``: starting a generation, waiting for its steps, closing it."""

from __future__ import annotations

from functools import partial

from inferd import protocol as p
from inferd_grammar import Compiled
from inferd_runtime.session.constraints.compile_call import when_compiled
from inferd_runtime.session.generation import open_generation
from inferd_runtime.session.generation.finished_text import BestEffortCheck, at_once
from inferd_runtime.session.generation.healing import Healing
from inferd_runtime.session.operations.adapter_lease import leased
from inferd_runtime.session.operations.passes import row_sampler
from inferd_runtime.session.state import Call, OpenContext, SessionState


def start(state: SessionState, call: Call) -> None:
    """Put a generation into the batch, as soon as its constraint is compiled."""
    request: p.StartGenerate = call.request
    entry = state.free_context(request.context)
    state.check_room()
    open_generation.check_request(request)
    healing = Healing.of(request, entry.context, entry.model)
    if healing is not None:
        request = healing.constrain(request)
    begin = partial(_begin, state, request, entry, healing)
    if request.constraint is None:
        call.respond(begin(None))
    else:
        when_compiled(state, call, entry.model, request.constraint, begin, hold=entry.context)


def _begin(
    state: SessionState,
    request: p.StartGenerate,
    entry: OpenContext,
    healing: Healing | None,
    compiled: Compiled | None,
) -> p.GenerationStarted:
    """Put the generation into the batch and give it a handle."""
    state.check_room()
    sampler = row_sampler(request.sampling, entry)
    with leased(state, entry, request.adapter) as lease:
        opened = open_generation.start(request, entry.model, entry.context, compiled, sampler, lease, healing)
    if healing is not None:
        entry.stand_from(healing.start)
    prompt = list(entry.context.tokens)
    if compiled is not None and request.constraint is not None and request.constraint.best_effort:
        run = at_once if state.compiles is None else partial(state.compiles.run, state.tenant)
        opened.check_at_end(BestEffortCheck(compiled, run))
    handle = state.open_generation(opened)
    state.count(p.Usage(prompt_tokens=len(prompt)))
    return p.GenerationStarted(handle, len(prompt), prompt if request.program_speculation else [])


def next_steps(state: SessionState, call: Call) -> None:
    """Answer with the finished steps as soon as there is one."""
    request: p.NextSteps = call.request
    opened = state.generation(request.generation)
    opened.request_steps(request)

    def deliver() -> None:
        first = opened.told + 1
        reply = opened.finished_steps()
        if reply is not None:
            state.waiting.pop(call.ticket, None)
            opened.generation.listener = None
            call.respond(reply)
        if isinstance(reply, p.Steps):
            state.publish(request.generation, first, reply.steps)

    def stop() -> None:
        opened.generation.listener = None
        call.respond(p.Cancelled("the operation was cancelled"))

    state.waiting[call.ticket] = stop
    opened.generation.listener = deliver
    deliver()


def close(state: SessionState, call: Call) -> None:
    """End a generation and tell what its context holds now."""
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
