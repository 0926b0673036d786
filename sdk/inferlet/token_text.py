"""A model's tokens as text, while they come: reasoning, calls and text told apart."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field

from inferd.chat.answer_parser import AnswerPart, AnswerShape
from inferd.chat.harmony import parser_of
from inferd.protocol import ChatFormat, GetChatFormat
from inferlet import turns
from inferlet.blocking import call
from inferlet.model import Model


class AnyTool(frozenset[str]):
    """The names of tools where none are known: every name is one of them."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def chat_format(model: Model) -> ChatFormat:
    """Return what the model's template knows of tools and reasoning."""
    known: dict[str, ChatFormat] = model.port.shared.setdefault("inferlet formats", {})
    if model.name not in known:
        known[model.name] = call(model.port, GetChatFormat(model.name))
    return known[model.name]


def answer_shape(model: Model, *, tools: bool = False) -> AnswerShape:
    """Return how the model's answers are read. ``tools``: calls are looked for."""
    form = chat_format(model)
    reasoning = (form.reasoning_begin, form.reasoning_end) if form.reasoning_begin else None
    opened = bool(form.begin_tokens) and turns.cue(model)[-len(form.begin_tokens) :] == list(form.begin_tokens)
    tool_format = form.tool_format if form.tools else "hermes"
    return AnswerShape(tool_format, AnyTool() if tools else frozenset(), reasoning, thinking=opened)


@dataclass
class Heard:
    """What one batch of tokens brought: parts of the answer, whether it ended, and other special tokens."""

    parts: list[AnswerPart] = field(default_factory=list)
    ended: bool = False
    special: list[int] = field(default_factory=list)


class TokenText:
    """Reads an answer token by token."""

    def __init__(self, model: Model, shape: AnswerShape) -> None:
        self._model = model
        self._shape = shape
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.parser = parser_of(self._shape)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Iterable[int]) -> Heard:
        """Read tokens. End-of-text ends the answer; what comes behind it is not read."""
        heard = Heard()
        ids, special = list(tokens), self._special()
        for token, piece in zip(ids, self._model.tokenizer().pieces(ids), strict=True):
            if token in self._model.info.eos_tokens:
                heard.ended = True
                heard.parts += self.finish()
                break
            if token in special and special[token] not in self._shape.shown:
                heard.special.append(token)
            elif text := self._decoder.decode(piece):
                heard.parts += self.parser.feed(text)
        return heard

    def finish(self) -> list[AnswerPart]:
        """Return what was held back, at the end of the text."""
        rest = self._decoder.decode(b"", final=True)
        return [*self.parser.feed(rest), *self.parser.finish()]

    def _special(self) -> dict[int, str]:
        known: dict[str, dict[int, str]] = self._model.port.shared.setdefault("inferlet special tokens", {})
        if self._model.name not in known:
            ids, names = self._model.tokenizer().special_tokens()
            known[self._model.name] = {token: name.decode() for token, name in zip(ids, names, strict=True)}
        return known[self._model.name]
