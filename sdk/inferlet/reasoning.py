"""The decoder of what a model thinks before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inferd.chat.answer_parser import ReasoningPart
from inferlet.model import Model
from inferlet.token_text import TokenText, answer_shape


class Event:
    """What a batch of tokens brought; one of these for each ``feed``."""

    @dataclass(frozen=True)
    class Idle:
        """Nothing of the reasoning."""

    @dataclass(frozen=True)
    class Start:
        """The reasoning begins; there is no text of it yet."""

    @dataclass(frozen=True)
    class Delta:
        """More of it."""

        text: str

    @dataclass(frozen=True)
    class End:
        """It is over; ``text`` is all of it."""

        text: str


AnyEvent: TypeAlias = Event.Idle | Event.Start | Event.Delta | Event.End


class Decoder:
    """Tokens to what stands between the model's marks of reasoning. A model without marks is always Idle."""

    def __init__(self, model: Model | None = None) -> None:
        model = model or Model.load()
        self._shape = answer_shape(model)
        self._tokens = TokenText(model, self._shape)
        self._text = ""
        self._inside = False

    def feed(self, tokens: list[int]) -> AnyEvent:
        """Read a batch of tokens."""
        heard = self._tokens.feed(tokens)
        text = "".join(part.text for part in heard.parts if isinstance(part, ReasoningPart))
        self._text += text
        inside, was = self._tokens.parser.is_thinking and not heard.ended, self._inside
        self._inside = inside
        if not inside and (was or text):
            whole, self._text = self._text, ""
            return Event.End(whole)
        if text:
            return Event.Delta(text)
        return Event.Start() if inside and not was else Event.Idle()

    def reset(self) -> None:
        """Begin anew."""
        self._tokens.reset()
        self._text = ""
        self._inside = False
