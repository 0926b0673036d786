"""A call whose arguments have marks each, as Qwen3-Coder and GLM write it; see :class:`~inferd.chat.call_forms.XmlForm`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from inferd.chat.call_forms import XmlForm
from inferd.chat.call_scanner import BLANK

MAX_NAME = 256
"""Characters of a name: what is longer is none."""
WORDS = {"true", "false", "null"}
Schemas = Mapping[str, Mapping[str, Any]]
"""The schemas of tools' arguments, by the tools' names."""


def is_text(schema: Any) -> bool:
    """Return True if a schema is one of texts alone: these are written without quotes."""
    if not isinstance(schema, Mapping):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    only_texts = isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)
    return bool(schema.get("type", "string" if only_texts else "") == "string")


def value_text(written: str, schema: Any) -> str:
    """Return the JSON text of an argument. What should be JSON and is none is a text all the same."""
    if not is_text(schema) and schema is not None:
        plain = written.strip()
        if plain.lower() in WORDS:
            return plain.lower()
        try:
            json.loads(plain, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        else:
            return plain
    return json.dumps(written, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


class XmlCallScanner:
    """Takes the text of a call from its opening on; see :class:`~inferd.chat.call_scanner.CharacterScanner`.

    A text comes out while it is written, any other argument when it is complete: only then its JSON is known.
    """

    def __init__(self, form: XmlForm, schemas: Schemas) -> None:
        self.name = ""
        self.done = False
        self.failed = False
        self._form = form
        self._schemas = schemas
        self._state: Callable[[], bool] = self._in_name
        self._rest = ""
        self._taken: list[str] = []
        self._value: list[str] = []
        self._is_text = self._is_begun = False
        self._line_feed = ""
        self._parameter = ""
        self._count = 0
        self._arguments: list[str] = []

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._taken) + self._rest

    def feed(self, text: str) -> str:
        """Take text up to the call's end, or to where it fails, and return what is behind."""
        self._rest += text
        while not self.done and not self.failed and self._state():
            pass
        if not self.done and not self.failed:
            return ""
        rest, self._rest = self._rest, ""
        return rest

    def new_arguments(self) -> str:
        """Return the arguments' text that has come since the last call."""
        new, self._arguments = "".join(self._arguments), []
        return new

    def _in_name(self) -> bool:
        name = self._named(*self._form.call)
        if name:
            self.name, self._state = name, self._between
        return bool(name)

    def _between(self) -> bool:
        """Before an argument, or the end."""
        self._skip_blank()
        if self._rest.startswith(self._form.end):
            self._take(len(self._form.end))
            self._arguments.append("}" if self._count else "{}")
            self.done = True
        elif self._form.end.startswith(self._rest):
            return False
        elif name := self._named(*self._form.key):
            self._parameter, self._state = name, self._before_value
            return True
        return False

    def _before_value(self) -> bool:
        if self._form.value:
            self._skip_blank()
        if not self._rest.startswith(self._form.value):
            self.failed = not self._form.value.startswith(self._rest)
            return False
        self._take(len(self._form.value))
        self._is_text, self._is_begun, self._line_feed = is_text(self._schema(self._parameter)), False, ""
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        end = self._form.value_end
        at = self._rest.find(end)
        unsure = next(n for n in range(len(end) - 1, -1, -1) if self._rest.endswith(end[:n]))
        written = self._take(at if at >= 0 else len(self._rest) - unsure)
        if self._is_text:
            self._write_text(written, last=at >= 0)
        else:
            self._value.append(written)
        if at < 0:
            return False
        self._take(len(end))
        self._write_end()
        self._count, self._state = self._count + 1, self._between
        return True

    def _write_text(self, written: str, *, last: bool) -> None:
        """Write more of a text, except the line feeds around it that are none of its own."""
        text = self._line_feed + written
        if not text and not last:
            return
        if not self._is_begun:
            self._arguments.append(self._key + '"')
            self._is_begun, text = True, text.removeprefix(self._form.line)
        kept = text.removesuffix(self._form.line)
        self._line_feed = "" if last else text[len(kept) :]
        self._arguments.append(json.dumps(kept, ensure_ascii=False)[1:-1])

    def _write_end(self) -> None:
        if self._is_text:
            self._arguments.append('"')
            return
        written, self._value = "".join(self._value).removeprefix(self._form.line).removesuffix(self._form.line), []
        self._arguments.append(self._key + value_text(written, self._schema(self._parameter)))

    @property
    def _key(self) -> str:
        return f"{', ' if self._count else '{'}{json.dumps(self._parameter)}: "

    def _schema(self, parameter: str) -> Any:
        """Return the schema of an argument, None where it is not known."""
        properties = self._schemas.get(self.name, {}).get("properties")
        return properties.get(parameter) if isinstance(properties, Mapping) else None

    def _named(self, opening: str, closing: str) -> str:
        """Take ``opening``, a name and ``closing``, and return the name; "" if it is not complete, or none. Without ``closing``
        a name ends with its line, or where a mark begins.
        """
        found = re.search(re.escape(closing) or r"[\n<]", self._rest[len(opening) :])
        if not self._rest.startswith(opening[: len(self._rest)]) or (
            len(self._rest) > MAX_NAME + len(opening) and found is None
        ):
            self.failed = True
        if self.failed or found is None:
            return ""
        name = self._take(len(opening) + found.start())[len(opening) :].strip()
        self._take(len(closing))
        self.failed = not name or "<" in name
        return name

    def _skip_blank(self) -> None:
        self._take(len(self._rest) - len(self._rest.lstrip(BLANK)))

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        self._taken.append(taken)
        return taken
