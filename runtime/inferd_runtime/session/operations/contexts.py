"""``context.*``: making, filling, forking, cutting and releasing contexts."""

from __future__ import annotations

from functools import partial

from inferd import protocol as p
from inferd_runtime.engine.jobs.forward_pass import ContextJob
from inferd_runtime.engine.jobs.generation import Generation
from inferd_runtime.session import transcript
from inferd_runtime.session.state import Call, OpenContext, SessionState
from inferd_runtime.session.texts import RenderSize, check_parts, most_characters, render_with

RENDERINGS = 4
"""How often the chat template may write a part, to find what it adds to the parts before it."""
TEMPLATE_CHARACTERS = 16_384
"""Characters that a template may write on its own for a part: templates have instructions of their own in them."""


def create(state: SessionState, call: Call) -> None:
    """Create an empty context."""
    request: p.CreateContext = call.request
    p.check_create(request)
    model = state.model(request.model)
    context = model.engine.create_context(state.tenant, request.cache_salt, state.meter)
    call.respond(state.open_context(OpenContext(model, context)))


def append(state: SessionState, call: Call) -> None:
    """Add parts without computing them."""
    request: p.AppendContext = call.request
    p.check_append(request)
    entry = state.free_context(request.context)
    characters = check_parts(request.parts, entry)
    last = entry.context.tokens[-1] if entry.context.tokens else None
    render = partial(transcript.render, request.parts, entry.turn, last, entry.model.tokenizer)

    def appended(rendered: tuple[list[int], transcript.Turn]) -> p.ContextState:
        tokens, turn = rendered
        state.check_tokens(len(tokens))
        entry.context.append(tokens)
        entry.stand_at(turn)
        return state.context_state(request.context)

    most = most_characters(entry.model, entry.model.info.max_context) + TEMPLATE_CHARACTERS * len(request.parts)
    size = RenderSize(characters, len(request.parts), RENDERINGS * most)
    render_with(state, call, size, render, lambda rendered: call.respond(appended(rendered)))


def fork(state: SessionState, call: Call) -> None:
    """Copy a context. A running generation goes on, and the copy holds what closing it now would leave."""
    request: p.ForkContext = call.request
    state.check_room()
    entry = state.context(request.context)
    running = state.running_on(entry.context)
    if running is not None:
        return call.respond(state.open_context(entry.fork(*running.keep(request.length))))
    held = len(state.free_context(request.context).context.tokens)
    if not -1 <= request.length <= held:
        raise p.InvalidRequest(f"cannot copy {request.length} tokens: the context holds {held}")
    call.respond(state.open_context(entry.fork(held if request.length < 0 else request.length)))


def truncate(state: SessionState, call: Call) -> None:
    """Keep the first tokens. A generation that runs on the context ends with its delivered tokens."""
    request: p.TruncateContext = call.request
    p.check_truncate(request)
    user = state.context(request.context).context.user
    if isinstance(user, Generation):
        state.end_generation(user)
    state.free_context(request.context).truncate(request.length)
    call.respond(state.context_state(request.context))


def tokens(state: SessionState, call: Call) -> None:
    """Answer with the context's token ids, including a healed prompt's end that is not rewritten yet."""
    request: p.ContextTokens = call.request
    p.check_context_tokens(request)
    context = state.context(request.context).context
    running = state.running_on(context)
    length, missing = (0, ()) if running is None else running.keep()
    held = [*context.tokens[:length], *missing] if missing else context.tokens
    call.respond(p.Tokens(held[request.start :]))


def release(state: SessionState, call: Call) -> None:
    """Release a context. A pass that runs on it ends first; a generation is to be closed before."""
    request: p.ReleaseContext = call.request
    user = state.context(request.context).context.user
    if isinstance(user, ContextJob):
        user.fail(p.InvalidRequest("the context was released while this call ran on it"))
    state.free_context(request.context)
    state.drop_context(request.context)
    call.respond(p.Done())


HANDLERS = {
    p.CreateContext: create,
    p.AppendContext: append,
    p.ForkContext: fork,
    p.TruncateContext: truncate,
    p.ContextTokens: tokens,
    p.ReleaseContext: release,
}
