"""Chat messages to text that continues a context, whatever the model's template looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferd.protocol import InvalidRequest
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.template_input import TemplateInput

ChatMessage = dict[str, str]
QUESTION: ChatMessage = {"role": "user", "content": "x"}
ANSWER: ChatMessage = {"role": "assistant", "content": "y"}


class ChatTemplate(Protocol):
    """What renders whole conversations."""

    def render(self, conversation: TemplateInput, budget: RenderBudget) -> str:
        """Return the text of a conversation, in which the names of control tokens stand unbroken only where the template wrote
        them. Raises InvalidRequest for messages that the template refuses, LimitExceeded past the budget.
        """


def opening(template: ChatTemplate, messages: Sequence[ChatMessage], budget: RenderBudget, *, cue: bool) -> str:
    """Return the text of the first messages of a context."""
    return template.render(TemplateInput(messages, cue=cue), budget)


def continuation(template: ChatTemplate, messages: Sequence[ChatMessage], budget: RenderBudget, *, cue: bool) -> str:
    """Return the text that messages add to a conversation, found as the difference to one that stands for what came before.

    Raises InvalidRequest when the template rewrites earlier turns, so that there is no such text.
    """
    before = [QUESTION] if (messages and messages[0]["role"] == "assistant") or not messages else [QUESTION, ANSWER]
    old = template.render(TemplateInput(before), budget)
    new = template.render(TemplateInput([*before, *messages], cue=cue), budget)
    if not new.startswith(old):
        raise InvalidRequest("this model's chat template rewrites earlier turns: such a message cannot be added here")
    return new[len(old) :]


def end_of_answer(template: ChatTemplate, budget: RenderBudget) -> str:
    """Return what the template puts behind an assistant's text."""
    whole = template.render(TemplateInput([QUESTION, ANSWER]), budget)
    return whole[whole.rindex(ANSWER["content"]) + len(ANSWER["content"]) :]
