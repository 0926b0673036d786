"""Chat turns as tokens, by the model's own template.

A turn stands for itself, as in Pie: what a template writes for it behind a question and its answer. The first turns of a context
are written as the beginning of a conversation, with all that the template puts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from inferd.protocol import InvalidRequest, RenderChat
from inferlet.blocking import call
from inferlet.model import Model

Turn: TypeAlias = dict[str, Any]
QUESTION: Turn = {"role": "user", "content": "x"}
ANSWER: Turn = {"role": "assistant", "content": "y"}


def turn(role: str, text: str) -> Turn:
    """Return a turn. Raises TypeError for what is no text."""
    if not isinstance(text, str):
        raise TypeError(f"a message is text, not {type(text).__name__}")
    return {"role": role, "content": text}


def opening(model: Model, turns: Sequence[Turn], *, cue: bool = False, tools: Sequence[Any] = ()) -> list[int]:
    """Return the tokens of a conversation's first turns."""
    return list(call(model.port, RenderChat(list(turns), model.name, list(tools), cue=cue)).tokens)


def continuation(model: Model, turns: Sequence[Turn], *, cue: bool = False) -> list[int]:
    """Return the tokens that turns add to a conversation. Raises InvalidRequest where the template rewrites what came before."""
    before = [QUESTION, ANSWER] if turns and turns[0]["role"] != "assistant" else [QUESTION]
    old = _known(model, RenderChat(before, model.name, cue=False))
    new = opening(model, [*before, *turns], cue=cue)
    if new[: len(old)] != old:
        raise InvalidRequest("this model's chat template rewrites earlier turns: such a turn has no tokens of its own")
    return new[len(old) :]


def cue(model: Model) -> list[int]:
    """Return the tokens that begin the assistant's turn."""
    return continuation(model, [], cue=True)


def seal(model: Model) -> list[int]:
    """Return the tokens that end the assistant's turn."""
    open_turn = _known(model, RenderChat([QUESTION, ANSWER], model.name, cue=False, continue_final=True))
    return _known(model, RenderChat([QUESTION, ANSWER], model.name, cue=False))[len(open_turn) :]


def _known(model: Model, request: RenderChat) -> list[int]:
    """Return the tokens of a conversation that never changes. It is rendered once."""
    known: dict[str, list[int]] = model.port.shared.setdefault("inferlet turns", {})
    key = repr(request)
    if key not in known:
        known[key] = list(call(model.port, request).tokens)
    return known[key]
