"""Text on its way to tokens: bounded by the context before it is read, and read beside the step loop where it is long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from inferd import protocol as p
from inferd_runtime.session.lanes import Piece
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, OpenContext, SessionState, guarded

T = TypeVar("T")
SHORT_TEXT = 2048
"""Characters that are tokenized at once, in about 2 ms; more leave the step loop."""
LONG_TOKEN = 32
"""Characters. A text of more for each token that there is room for is refused unread; or of more than the longest token has."""
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

    def done(future: Future[T]) -> None:
        if state.waiting.get(call.ticket) is not stop:
            return
        del state.waiting[call.ticket]
        state.held = False
        failure = guarded(lambda: then(future.result()))
        if failure is not None:
            call.respond(failure)

    def stop() -> None:
        state.held = False
        call.respond(p.Cancelled("the operation was cancelled"))

    state.held = True
    state.waiting[call.ticket] = stop
    state.texts.submit(Piece(state.tenant, work, done, lambda: state.waiting.get(call.ticket) is stop))
