"""Tokenizes texts: refuses those that cannot fit into the context unread, and reads long ones beside the step loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from inferd import protocol as p
from inferd_runtime.engine.jobs.boundary import typed_error
from inferd_runtime.lanes import Lanes, Piece
from inferd_runtime.models.jinja_template import RENDER_LIMIT, RENDER_SECONDS, RenderBudget
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, OpenContext, SessionState, guarded

T = TypeVar("T")
SHORT_TEXT = 2048
"""Characters that are tokenized at once, in about 2 ms; more leave the step loop."""
LONG_TOKEN = 32
"""Characters that a token is taken to hold at least. A text that has more of them for each free token is refused unread."""
VALUE_CHARACTERS = 64
"""A message, or any other value that a chat template sees, counts as so many characters: each may cost a rendering."""
QUICK_SECONDS = 0.005
"""Processor time that a chat template may take within the step loop."""
MAX_PARTS = 1024
"""Parts of one append. Each may cost a rendering of the chat template."""


def most_characters(model: ServedModel, tokens: int) -> int:
    """Return the length of the longest text that ``tokens`` tokens can hold."""
    return tokens * max(LONG_TOKEN, model.longest_token)


def check_text(model: ServedModel, characters: int, room: int) -> None:
    """Raises LimitExceeded for a text that cannot fit into ``room`` tokens, however it is tokenized."""
    if characters > most_characters(model, room):
        raise p.LimitExceeded(
            f"a text of {characters} characters does not fit: the context has room for {room} tokens",
            limit="context_tokens", value=model.info.max_context, raise_with="a model with a longer context",
        )  # fmt: skip


def check_parts(parts: Sequence[p.Part], entry: OpenContext) -> int:
    """Return the characters of the parts. Raises LimitExceeded for what cannot fit behind the context."""
    room = entry.context.max_length - len(entry.context.tokens)
    characters = sum(len(part.text) for part in parts)
    check_text(entry.model, characters, room)
    if len(parts) > MAX_PARTS:
        raise p.LimitExceeded(
            f"{len(parts)} parts at once", limit="parts", value=MAX_PARTS, raise_with="several calls or longer parts"
        )
    return characters


class RenderSize(NamedTuple):
    """The characters and values of what a template is to render, and the ``most`` characters that may come of it."""

    characters: int
    values: int
    most: int


def answer_with(
    state: SessionState, call: Call, characters: int, work: Callable[[], T], reply: Callable[[T], Any]
) -> None:
    """Answer with ``reply(work())``; see :func:`run_with`."""
    run_with(state, call, characters, work, lambda result: call.respond(reply(result)))


def run_with(
    state: SessionState, call: Call, characters: int, work: Callable[[], T], then: Callable[[T], None]
) -> None:
    """Call ``then(work())``, which answers. Where the text is long, ``work`` runs beside the step loop, and the session waits
    for it: what it asks meanwhile comes after. A cancel does not wait; the work is left to end on its own.
    """
    if state.texts is None or characters <= SHORT_TEXT:
        return then(work())
    _run_beside(state, call, state.texts, work, then)


def render_with(
    state: SessionState, call: Call, size: RenderSize, work: Callable[[RenderBudget], T], then: Callable[[T], None]
) -> None:
    """As :func:`run_with`, for a chat template. What is short is rendered at once, but only if the template is quick about it."""
    late = partial(_with_budget, work, RENDER_SECONDS, size.most)
    if state.texts is None:
        return then(late())
    if size.characters + size.values * VALUE_CHARACTERS <= SHORT_TEXT:
        try:
            rendered = _with_budget(work, QUICK_SECONDS, size.most)
        except p.LimitExceeded as error:
            if error.detail["limit"] != RENDER_LIMIT:
                raise
        else:
            return then(rendered)
    _run_beside(state, call, state.texts, late, then)


def _with_budget(work: Callable[[RenderBudget], T], seconds: float, characters: int) -> T:
    """Call ``work`` with a budget that begins now, in this thread."""
    return work(RenderBudget(seconds, characters))


def _run_beside(
    state: SessionState, call: Call, texts: Lanes, work: Callable[[], T], then: Callable[[T], None]
) -> None:
    def done(future: Future[T]) -> None:
        if state.waiting.get(call.ticket) is not stop:
            return
        del state.waiting[call.ticket]
        state.held = False
        error = future.exception()  # raised here, it would hold this future, which holds it, with what was asked
        failure = typed_error(error) if isinstance(error, Exception) else guarded(then, future.result())
        if failure is not None:
            call.respond(failure)

    def stop() -> None:
        texts.drop_unwanted(state.tenant)
        state.held = False
        call.respond(p.Cancelled("the operation was cancelled"))

    state.held = True
    state.waiting[call.ticket] = stop
    texts.submit(Piece(state.tenant, work, done, lambda: state.waiting.get(call.ticket) is stop))
