"""Reads JSON while it is generated: the finished parts, checked against their types."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from inferd.program.json_types import part_type, structure
from inferd.protocol.errors import ConstraintError, InvalidRequest
from inferd.schema import parse_json

T = TypeVar("T")
NOTHING: Any = object()
SPACE = re.compile(r"[ \t\n\r]*")
SCALAR = re.compile(r"[^ \t\n\r,\]}:\[{\"]*")
STRING_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?$")
EVEN_BACKSLASHES = re.compile(r"(?:^|[^\\])(?:\\\\)*$")


@dataclass(frozen=True)
class Partial(Generic[T]):
    """A JSON value so far: what ``Generator.stream_json`` yields.

    ``value`` holds plain values: objects and arrays from their first character on, and in them only what is finished, in
    order: no cut string, number or word, and no key without a value. It is None while nothing is there. Finished parts are
    the same objects in all partials of a stream: copy before you change one.

    ``path`` is the place of the part that is being written (keys and indices), and ``text`` what is there of it when it is
    a string value; else "". At the end ``complete`` is True and ``result`` is the value as the type; before, None.
    """

    value: Any
    path: tuple[str | int, ...] = ()
    text: str = ""
    complete: bool = False
    result: T | None = None


class _OpenValue:
    """An object or array that has no end yet. ``kind``: its type, Any where that is not known."""

    def __init__(self, value: dict[str, Any] | list[Any], kind: Any) -> None:
        self.value = value
        self.kind = kind
        self.key: str | None = None

    @property
    def step(self) -> str | int | None:
        """The key or index of the part that comes now; None where no key was read yet."""
        return len(self.value) if isinstance(self.value, list) else self.key

    def put(self, part: Any) -> None:
        """Add a part that is finished."""
        if isinstance(self.value, list):
            self.value.append(part)
        else:
            assert self.key is not None
            self.value[self.key] = part
            self.key = None


class PartialJson:
    """Reads JSON in pieces of any size. Every finished part is checked against its type, and a repeated key refused.

    Each character is looked at a bounded number of times, and a snapshot copies the open objects and arrays only.
    """

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._text = ""
        self._at = 0
        self._scanned = 0  # of an open string
        self._expect = "value"  # value | item or end | key | key or end | colon | comma or end | nothing
        self._stack: list[_OpenValue] = []
        self._root: Any = NOTHING
        self._changes = 0

    def feed(self, text: str) -> bool:
        """Read the next piece. Returns True if a snapshot shows something new.

        Raises ConstraintError for text that no JSON value begins with, a repeated key, or a part that does not fit.
        """
        before, self._text = self._changes, self._text + text
        while self._advance(ended=False):
            pass
        return before != self._changes

    def end(self) -> None:
        """Read the end of the text, which finishes a number at the top. Raises ConstraintError if something is missing."""
        while self._advance(ended=True):
            pass
        if self._expect != "nothing":
            raise ConstraintError("the output is not JSON: it ends too early")

    def snapshot(self) -> Partial[Any]:
        """Return the value so far."""
        value: Any = self._root
        for opened in reversed(self._stack):
            inner, value = value, opened.value.copy()
            if opened is not self._stack[-1]:
                _add(value, opened.key, inner)
        return Partial(None if value is NOTHING else value, self._place(), self._open_text())

    def _advance(self, ended: bool) -> bool:
        """Read one token. Returns False if the text has no whole one."""
        if self._scanned <= self._at:
            space = SPACE.match(self._text, self._at)
            assert space is not None
            self._at = space.end()
        if self._at >= len(self._text):
            return False
        character = self._text[self._at]
        if self._expect == "nothing":
            raise self._refusal("nothing may follow the value")
        if character == '"' and self._expect in ("value", "item or end", "key", "key or end"):
            return self._string()
        if self._expect in ("value", "item or end") and character not in "]},:":
            return self._open(character) if character in "{[" else self._scalar(ended)
        self._punctuation(character)
        return True

    def _string(self) -> bool:
        start = max(self._at + 1, self._scanned)
        run = STRING_END.match(self._text, start)
        assert run is not None
        self._scanned = run.end()
        if run.end() == len(self._text) or self._text[run.end()] != '"':
            self._changes += run.end() > start and not self._expect.startswith("key")
            return False
        text = parse_json(self._text[self._at : run.end() + 1])
        self._at = self._scanned = run.end() + 1
        if self._expect in ("key", "key or end"):
            self._name(text)
        else:
            self._finish(text)
        return True

    def _scalar(self, ended: bool) -> bool:
        word = SCALAR.match(self._text, self._at)
        assert word is not None
        if word.end() == len(self._text) and not ended:
            return False
        value = parse_json(word.group())
        self._at = word.end()
        self._finish(value)
        return True

    def _open(self, character: str) -> bool:
        self._at += 1
        self._changes += 1
        kind = self._part_kind()
        value: dict[str, Any] | list[Any] = {} if character == "{" else []
        self._stack.append(_OpenValue(value, kind))
        self._expect = "key or end" if character == "{" else "item or end"
        return True

    def _punctuation(self, character: str) -> None:
        top = self._stack[-1] if self._stack else None
        if character == ":" and self._expect == "colon":
            self._expect = "value"
        elif character == "," and self._expect == "comma or end" and top is not None:
            self._expect = "key" if isinstance(top.value, dict) else "value"
        elif top is not None and self._expect.endswith("or end") and character == _closing(top):
            self._stack.pop()
            self._at += 1
            self._finish(top.value, top)
            return
        else:
            raise self._refusal(f"{character!r} is not expected there")
        self._at += 1

    def _name(self, key: str) -> None:
        top = self._stack[-1]
        if key in top.value:
            raise self._refusal(f"the key {key!r} is repeated")
        top.key = key
        self._changes += 1
        self._expect = "colon"

    def _finish(self, value: Any, closed: _OpenValue | None = None) -> None:
        kind = self._part_kind() if closed is None else closed.kind
        if kind is not Any:
            _check(kind, value, _shown(self._place()))
        self._changes += 1
        if self._stack:
            self._stack[-1].put(value)
            self._expect = "comma or end"
        else:
            self._root = value
            self._expect = "nothing"

    def _part_kind(self) -> Any:
        """Return the type of the part that comes now."""
        if not self._stack:
            return self._kind
        top = self._stack[-1]
        if top.kind is Any or top.step is None:
            return Any
        return part_type(top.kind, top.step, "output")

    def _place(self) -> tuple[str | int, ...]:
        return tuple(opened.step for opened in self._stack if opened.step is not None)

    def _open_text(self) -> str:
        """Return the characters so far of a string value without an end."""
        if self._scanned <= self._at or self._expect not in ("value", "item or end"):
            return ""
        return decoded_start(self._text[self._at + 1 :])

    def _refusal(self, problem: str) -> ConstraintError:
        return ConstraintError(f"the output is not JSON: character {self._at}: {problem}")


def finished_members(text: str) -> dict[str, Any]:
    """Return what is complete in the JSON text of an object that was cut; nothing where it is none."""
    partial = PartialJson()
    with suppress(ConstraintError):
        partial.feed(text)
    value = partial.snapshot().value
    return value if isinstance(value, dict) else {}


def decoded_start(raw: str) -> str:
    """Return the characters that the start of a JSON string stands for; an escape that is cut, or half a pair, is left out."""
    cut = CUT_ESCAPE.search(raw)
    while cut is not None and not EVEN_BACKSLASHES.search(raw[: cut.start()]):
        cut = CUT_ESCAPE.search(raw, cut.start() + 1)
    text: str = parse_json(f'"{raw if cut is None else raw[: cut.start()]}"')
    return text


def _add(value: Any, key: str | None, inner: Any) -> None:
    if inner is NOTHING:
        return
    if isinstance(value, list):
        value.append(inner)
    else:
        value[key] = inner


def _closing(top: _OpenValue) -> str:
    return "}" if isinstance(top.value, dict) else "]"


def _check(kind: Any, value: Any, path: str) -> None:
    try:
        structure(kind, value, path)
    except InvalidRequest as error:
        raise ConstraintError(error.message) from error


def _shown(path: tuple[str | int, ...]) -> str:
    return "output" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
