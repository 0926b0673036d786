"""Chat turns as tokens, and the decoder of the model's answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inferd.chat.answer_parser import AnswerPart, TextPart
from inferlet import turns
from inferlet.model import Model, optional_model
from inferlet.token_text import TokenText, answer_shape


@optional_model
def system(model: Model, message: str) -> list[int]:
    """Return the tokens of a system message, which begins a conversation."""
    return turns.opening(model, [turns.turn("system", message)])


@optional_model
def user(model: Model, message: str) -> list[int]:
    """Return the tokens of a user message."""
    return turns.continuation(model, [turns.turn("user", message)])


@optional_model
def assistant(model: Model, message: str) -> list[int]:
    """Return the tokens of a whole assistant message."""
    return turns.continuation(model, [turns.turn("assistant", message)])


@optional_model
def cue(model: Model) -> list[int]:
    """Return the tokens that begin the assistant's turn."""
    return turns.cue(model)


@optional_model
def seal(model: Model) -> list[int]:
    """Return the tokens that end the assistant's turn."""
    return turns.seal(model)


@optional_model
def stop_tokens(model: Model) -> list[int]:
    """Return the tokens that end a text."""
    return list(model.info.eos_tokens)


class Event:
    """What a batch of tokens brought; one of these for each ``feed``."""

    @dataclass(frozen=True)
    class Idle:
        """Nothing to show."""

    @dataclass(frozen=True)
    class Delta:
        """More text."""

        text: str

    @dataclass(frozen=True)
    class Done:
        """The answer is over; ``text`` is all of it."""

        text: str

    @dataclass(frozen=True)
    class Interrupt:
        """A special token that is no text, and no end."""

        token: int


AnyEvent: TypeAlias = Event.Idle | Event.Delta | Event.Done | Event.Interrupt


class Decoder:
    """Tokens to the text that is shown: without reasoning and special tokens, whole characters only."""

    def __init__(self, model: Model | None = None) -> None:
        model = model or Model.load()
        self._tokens = TokenText(model, answer_shape(model))
        self._text = ""

    def feed(self, tokens: list[int]) -> AnyEvent:
        """Read a batch of tokens."""
        heard = self._tokens.feed(tokens)
        text = self._said(heard.parts)
        if heard.ended:
            return Event.Done(self._text)
        if text:
            return Event.Delta(text)
        return Event.Interrupt(heard.special[-1]) if heard.special else Event.Idle()

    def finish(self) -> str:
        """Return the text that was held back, at the end. (Not in Pie.)"""
        return self._said(self._tokens.finish())

    def reset(self) -> None:
        """Begin anew."""
        self._tokens.reset()
        self._text = ""

    def _said(self, parts: list[AnswerPart]) -> str:
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        self._text += text
        return text
