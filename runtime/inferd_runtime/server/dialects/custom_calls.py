"""Calls of custom tools, whose client gets a text: the argument of a function to the model, read while it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from inferd.chat import Tool, ToolArguments, ToolCallStarted
from inferd.chat.request import INPUT

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_BEGINNING = f'{{"{INPUT}":"'
_PIECE = re.compile(r'[^"\\]+|"|\\u[0-9a-fA-F]{4}|\\[^u]|\\(?=u[0-9a-fA-F]{0,3}[^0-9a-fA-F])')
"""The last: what is no escape, where nothing holds the text to JSON, is the text itself."""
_ESCAPES: Mapping[str, str] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MOST_HELD = 256
"""Characters before the text: more of them are no beginning of one."""
_NO_LETTER = "\ufffd"
"""In place of half a letter, which no message carries."""


class InputReader:
    """Takes the arguments of a call piece by piece, and gives the text out that is in them; if they are no such object, all."""

    def __init__(self) -> None:
        self._rest = ""
        self._take = self._opening
        self._half = ""

    def feed(self, text: str) -> str:
        """Return the text that has come."""
        self._rest += text
        return self._take()

    def _opening(self) -> str:
        if found := _OPENING.match(self._rest):
            self._rest, self._take = self._rest[found.end() :], self._inside
        elif len(self._rest) > _MOST_HELD or not _BEGINNING.startswith("".join(self._rest.split())):
            self._take = self._all
        else:
            return ""
        return self._take()

    def _all(self) -> str:
        text, self._rest = self._rest, ""
        return text

    def _inside(self) -> str:
        pieces: list[str] = []
        at = 0
        while found := _PIECE.match(self._rest, at):
            at = found.end()
            if found[0] == '"':
                self._take = self._behind
                break
            pieces.append(self._read(found[0]))
        self._rest = self._rest[at:]
        return "".join(pieces)

    def _behind(self) -> str:
        self._rest = ""
        return ""

    def _read(self, piece: str) -> str:
        """Return what a piece of the string stands for, behind half a letter that waited for its other one."""
        half, self._half = self._half, ""
        if not piece.startswith("\\u"):
            lost = _NO_LETTER if half else ""
            return lost + (_ESCAPES.get(piece[1], piece[1]) if piece[0] == "\\" and len(piece) > 1 else piece)
        char = chr(int(piece[2:], 16))
        if half and "\udc00" <= char <= "\udfff":
            return (half + char).encode("utf-16", "surrogatepass").decode("utf-16")
        lost = _NO_LETTER if half else ""
        if "\ud800" <= char <= "\udbff":
            self._half = char
            return lost
        return lost + (_NO_LETTER if "\udc00" <= char <= "\udfff" else char)


def input_of(arguments: str) -> str:
    """Return the text of a whole call, or of what was written of it."""
    return InputReader().feed(arguments)


class CustomCalls:
    """Tells calls of custom tools apart, and reads their texts. Used for one answer to one client."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.names = frozenset(tool.name for tool in tools if tool.custom is not None)
        self._readers: dict[int, InputReader] = {}

    def begin(self, event: ToolCallStarted) -> bool:
        """Take the beginning of a call, and return True if it is of a custom tool."""
        self._readers.pop(event.choice, None)
        if event.name not in self.names:
            return False
        self._readers[event.choice] = InputReader()
        return True

    def read(self, event: ToolArguments) -> str | None:
        """Return more of the text of an answer's last call; None for one of a function."""
        reader = self._readers.get(event.choice)
        return None if reader is None else reader.feed(event.text)
