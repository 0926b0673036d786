"""What was said in a context, message by message, as far as its program said it in messages. Pure and synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from inferd.protocol import Part

if TYPE_CHECKING:
    from inferd.chat.request import ChatMessage

    Said: TypeAlias = Part | ChatMessage


class Dialogue:
    """The messages of a context, its answers included; not :attr:`known` once something else stands in it.

    A program that gives a model tools needs them: a chat template tells of tools at the start of a conversation, which has to be
    written anew then.
    """

    def __init__(self, messages: Sequence[Said] = ()) -> None:
        self._messages: list[Said] = list(messages)
        self._answer: list[str] | None = None
        """Of the assistant's open turn; None where there is none."""
        self.known = True

    def add(self, parts: Sequence[Part]) -> None:
        """Take parts that the context has got."""
        for part in parts:
            if part.kind in ("message", "cue"):
                self._messages, self._answer = self.messages, [] if part.kind == "cue" else None
                self._messages += [part] if part.kind == "message" else []
            elif part.kind == "text":
                self.hear(part.text)
            else:
                self.known = False

    def hear(self, text: str) -> None:
        """Take more text of the assistant's open turn; it is no message where none is open."""
        if self._answer is None:
            self.known = False
        else:
            self._answer.append(text)

    @property
    def messages(self) -> list[Said]:
        """All that was said, the open turn included if it has text."""
        answer = "".join(self._answer or ())
        return [*self._messages, Part("message", role="assistant", text=answer)] if answer else list(self._messages)

    def copy(self) -> Dialogue:
        """Return a copy, for a fork."""
        twin = Dialogue(self._messages)
        twin._answer = None if self._answer is None else list(self._answer)
        twin.known = self.known
        return twin


def shared_length(held: Sequence[int], wanted: Sequence[int]) -> int:
    """Return how many tokens two texts begin with that are the same."""
    pairs = zip(held, wanted, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(held), len(wanted)))
