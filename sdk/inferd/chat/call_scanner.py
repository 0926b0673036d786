"""One tool call's JSON object, read while it is written: its name, and the text of its arguments as it grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO

ARGUMENT_KEYS = ("arguments", "parameters")
CALL_KEYS = ("name", "id", "type", *ARGUMENT_KEYS)
BLANK = " \t\r\n"


class JsonExtent:
    """Finds where a JSON value ends, from its first character on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False

    def ends_before(self, character: str) -> bool:
        """Return True if the value was a number or word, and ``character`` is what follows it."""
        return self._scalar and character in ",}]" + BLANK

    def take(self, character: str) -> bool:
        """Take the next character of the value, and return True if it is its last one."""
        if self._in_string:
            closes = character == '"' and not self._escaped
            self._escaped = character == "\\" and not self._escaped
            self._in_string = not closes
            return closes and self._depth == 0
        self._in_string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        self._scalar = self._depth == 0 and character not in '"}]'
        return self._depth == 0 and character in "}]"


class CharacterScanner:
    """Takes the text of a call character by character, each by the ``state`` that it has come to. Synchronous.

    ``name`` is "" until it is known; ``done`` once the call is complete; ``failed`` once it cannot be one.
    """

    def __init__(self, state: Callable[[str], None]) -> None:
        self.name = ""
        self.done = False
        self.failed = False
        self._state = state
        self._extent = JsonExtent()
        self._taken = StringIO()  # a list of characters takes twenty times as much
        self._arguments: list[str] = []

    @property
    def text(self) -> str:
        """All that was taken."""
        return self._taken.getvalue()

    def feed(self, text: str) -> str:
        """Take text up to the call's end, or to where it fails, and return what is behind."""
        for at, character in enumerate(text):
            if self.done or self.failed:
                self._taken.write(text[:at])
                return text[at:]
            self._state(character)
        self._taken.write(text)
        return ""

    def new_arguments(self) -> str:
        """Return the arguments' text that has come since the last call; "" while the name is not known."""
        if not self.name:
            return ""
        new, self._arguments = "".join(self._arguments), []
        return new


class CallScanner(CharacterScanner):
    """Takes an object from its ``{`` on. It fails where it is not JSON, and at a key that calls do not have."""

    def __init__(self) -> None:
        super().__init__(self._open)
        self._value, self._is_text = StringIO(), False
        self._key = ""

    def _open(self, character: str) -> None:
        self.failed, self._state = character != "{", self._before_key

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._begin(self._in_key, character)
        elif character == "}":
            self.done, self.failed = bool(self.name), not self.name
        elif character not in BLANK + ",":
            self.failed = True

    def _in_key(self, character: str) -> None:
        self._value.write(character)
        if self._extent.take(character):
            self._key = str(self._read())
            self.failed = self._key not in CALL_KEYS
            self._state = self._before_colon

    def _before_colon(self, character: str) -> None:
        if character == ":":
            self._state = self._before_value
        elif character not in BLANK:
            self.failed = True

    def _before_value(self, character: str) -> None:
        if character not in BLANK:
            self._begin(self._in_value, character)

    def _in_value(self, character: str) -> None:
        if self._extent.ends_before(character):
            self._value_ended()
            self._state(character)
            return
        self._value.write(character)
        ended = self._extent.take(character)
        if self._key in ARGUMENT_KEYS and not self._is_text:
            self._arguments.append(character)
        if ended:
            self._value_ended()

    def _begin(self, state: Callable[[str], None], character: str) -> None:
        self._extent, self._value, self._is_text, self._state = JsonExtent(), StringIO(), character == '"', state
        state(character)

    def _value_ended(self) -> None:
        self._state = self._before_key
        value = self._read()
        if self._key == "name":
            self.failed = not isinstance(value, str) or not value
            self.name = value if isinstance(value, str) else ""
        elif self._key in ARGUMENT_KEYS and isinstance(value, str):
            self._arguments = [value]  # some models write the object as a string

    def _read(self) -> object:
        """Return the value that has ended; fails where it is not JSON."""
        try:
            return json.loads(self._value.getvalue())
        except (ValueError, RecursionError):
            self.failed = True
            return ""
