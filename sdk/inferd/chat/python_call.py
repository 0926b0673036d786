"""A call as Python writes it: ``name(key='value', other=[1, True])``."""

from __future__ import annotations

import json

from inferd.chat.call_scanner import BLANK, CharacterScanner

MAX_NAME = 256
"""Characters of a name: what is longer is none."""
SIGNS = "'\",:[]{}()"
WORDS = {"True": "true", "False": "false", "None": "null"}
ESCAPES = {"'": "'", '"': '\\"', "\n": "", "x": "\\u00", **{letter: f"\\{letter}" for letter in "\\/bfnrtu"}}
"""What follows a backslash in a text, and what JSON writes for both."""


class PythonCallScanner(CharacterScanner):
    """Takes the text of a call from its name on, and gives its arguments out as JSON while they are written."""

    def __init__(self) -> None:
        super().__init__(self._in_name)
        self._word = ""
        self._quote = ""
        self._open: list[str] = []
        self._comma = ""
        self._count = 0

    def _in_name(self, character: str) -> None:
        if character == "(":
            self.name, self._word, self._state = self._word.strip(BLANK), "", self._in_key
            self.failed = not self.name
        else:
            self._grow(character, failed=character in "[]{}'\"=<")

    def _in_key(self, character: str) -> None:
        key = self._word.strip(BLANK)
        if character == "=" and key:
            self._arguments.append(f"{', ' if self._count else '{'}{json.dumps(key)}: ")
            self._count, self._word, self._state = self._count + 1, "", self._in_value
        elif character == ")" and not key:
            self._end()
        else:
            self._grow(character, failed=character in "[]{}'\"=<,():")

    def _in_value(self, character: str) -> None:
        """Between the texts of a value, inside of any brackets."""
        if character not in BLANK + SIGNS:
            self._grow(character)
            return
        word, self._word = self._word, ""
        if word or character in "'\"[{(":
            self._arguments.append(f"{self._comma}{WORDS.get(word, word)}")
            self._comma = ""
        if character in "'\"":
            self._quote, self._state = character, self._in_text
            self._arguments.append('"')
        elif character == ")" and not self._open:
            self._end()
        elif character == "," and not self._open:
            self._state = self._in_key
        elif character == ",":
            self._comma = character  # in Python one may stand before the end of a list, too
        elif character in SIGNS:
            self._take_bracket(character)

    def _take_bracket(self, character: str) -> None:
        if character in "[{(":
            self._open.append(character)
        elif character != ":":
            opened = self._open.pop() if self._open else ""
            self.failed, self._comma = opened + character not in ("[]", "{}", "()"), ""
        self._arguments.append({"(": "[", ")": "]"}.get(character, character))

    def _in_text(self, character: str) -> None:
        if character == "\\":
            self._state = self._escaped
        elif character == self._quote:
            self._arguments.append('"')
            self._state = self._in_value
        else:
            self._arguments.append(json.dumps(character, ensure_ascii=False)[1:-1])

    def _escaped(self, character: str) -> None:
        self._arguments.append(ESCAPES.get(character, f"\\\\{json.dumps(character, ensure_ascii=False)[1:-1]}"))
        self._state = self._in_text

    def _end(self) -> None:
        self._arguments.append("}" if self._count else "{}")
        self.done = True

    def _grow(self, character: str, *, failed: bool = False) -> None:
        self._word += character
        self.failed = failed or len(self._word) > MAX_NAME
