"""The state of a context's conversation, and the tokens that add the next part to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from inferd.protocol import InvalidRequest, Part
from inferd_runtime.engine.jobs.text import TextTokenizer
from inferd_runtime.models import chat
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.session.served_model import ChatTokenizer

ASKING_ROLES = ("system", "user")


@dataclass(frozen=True, slots=True)
class Turn:
    """``empty``: nothing there yet. ``answering``: a cue opened an assistant turn that nothing has closed. ``asked``: a
    system or user message came last, so the assistant is to speak.
    """

    empty: bool = True
    answering: bool = False
    asked: bool = False


def render(
    parts: Sequence[Part], turn: Turn, last_token: int | None, tokenizer: ChatTokenizer, budget: RenderBudget
) -> tuple[list[int], Turn]:
    """Return the tokens of checked ``parts`` behind a context that stands at ``turn``, and where it stands then."""
    tokens: list[int] = []
    for chunk in _chunks(parts):
        if chunk[0].kind in ("message", "cue"):
            before = tokens[-1] if tokens else last_token
            tokens += _close_answer(turn, before, tokenizer, budget)
            tokens += tokenizer.encode_rendered(_chat_text(chunk, turn, tokenizer, budget))
            turn = Turn(False, answering=chunk[-1].kind == "cue", asked=chunk[-1].role in ASKING_ROLES)
        else:
            tokens += _raw(chunk, turn, tokenizer)
            turn = replace(turn, empty=turn.empty and not tokens, asked=False)
    return tokens, turn


def _chunks(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield runs of messages with the cue behind them, which are rendered together, and each raw part alone."""
    for is_chat, run in groupby(parts, key=lambda part: part.kind in ("message", "cue")):
        chunk: list[Part] = []
        for part in run:
            chunk.append(part)
            if part.kind == "cue" or not is_chat:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def _chat_text(chunk: Sequence[Part], turn: Turn, tokenizer: ChatTokenizer, budget: RenderBudget) -> str:
    messages = [{"role": part.role, "content": part.text} for part in chunk if part.kind == "message"]
    cue = chunk[-1].kind == "cue"
    if turn.empty:
        if not messages:
            raise InvalidRequest("a cue needs a message before it")
        return chat.opening(tokenizer, messages, budget, cue=cue)
    return chat.continuation(tokenizer, messages, budget, cue=cue)


def _close_answer(turn: Turn, last_token: int | None, tokenizer: ChatTokenizer, budget: RenderBudget) -> list[int]:
    """Return the tokens that end the assistant's turn, without the end-of-text that the model wrote itself."""
    if not turn.answering:
        return []
    tail = tokenizer.encode_rendered(chat.end_of_answer(tokenizer, budget))
    if tail and tail[0] == last_token and last_token in tokenizer.eos_tokens:
        return tail[1:]
    return tail


def _raw(chunk: Sequence[Part], turn: Turn, tokenizer: TextTokenizer) -> list[int]:
    part = chunk[0]
    if part.kind == "tokens":
        return list(part.tokens)
    return tokenizer.encode(part.text, start=turn.empty)
