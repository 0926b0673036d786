"""Chat messages to text that continues a context, whatever the model's template looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferd.protocol import InvalidRequest

ChatMessage = dict[str, str]
QUESTION: ChatMessage = {"role": "user", "content": "x"}
ANSWER: ChatMessage = {"role": "assistant", "content": "y"}


class ChatTemplate(Protocol):
    """What renders whole conversations."""

    def render(self, messages: Sequence[ChatMessage], *, cue: bool) -> str:
        """Return the text of a conversation, with the assistant's cue if asked for."""
        ...


def opening(template: ChatTemplate, messages: Sequence[ChatMessage], *, cue: bool) -> str:
    """Return the text of the first messages of a context."""
    return template.render(messages, cue=cue)


def continuation(template: ChatTemplate, messages: Sequence[ChatMessage], *, cue: bool) -> str:
    """Return the text that messages add to a conversation, found as the difference to one that stands for what came before.

    Raises InvalidRequest when the template rewrites earlier turns, so that there is no such text.
    """
    before = [QUESTION] if (messages and messages[0]["role"] == "assistant") or not messages else [QUESTION, ANSWER]
    return _added(template, before, [*before, *messages], cue=cue)


def end_of_answer(template: ChatTemplate) -> str:
    """Return what the template puts behind an assistant's text."""
    whole = template.render([QUESTION, ANSWER], cue=False)
    return whole[whole.rindex(ANSWER["content"]) + len(ANSWER["content"]) :]


def _added(template: ChatTemplate, before: Sequence[ChatMessage], after: Sequence[ChatMessage], *, cue: bool) -> str:
    old, new = template.render(before, cue=False), template.render(after, cue=cue)
    if not new.startswith(old):
        raise InvalidRequest("this model's chat template rewrites earlier turns: such a message cannot be added here")
    return new[len(old) :]
