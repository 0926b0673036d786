"""Blacks out secrets in what a server sends back, so that one that repeats a request's headers tells the program nothing. Pure.

A server that is sent a secret can always write it in another way; hence a secret is bound to hosts that the operator trusts with
it. What is covered are the ways in which servers repeat headers: as they are, in UTF-16, in JSON, in URLs, in HTML and in
Base64, whichever characters they escape there beside letters and digits.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable

SHORTEST = 8
"""Characters of a secret; and of a part of one (behind "Bearer", say) that is blacked out by itself."""
LONGEST_CHARACTER = 6
"""Bytes that one character is written as: ``\\u002b``, ``&quot;``."""
OTHERWISE = {"+": "-", "/": "_", " ": "+"}
"""What stands for a character in Base64 of another alphabet, and in forms."""


class Redactor:
    """Replaces secrets in a stream by as many asterisks.

    The end of what has come is held back, up to the length of a secret, except what stands before a line's end: no secret
    goes over one. How much is held back must not depend on what it is: else a program that has a server repeat its guesses would
    see by the pieces when one is the beginning of a secret.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in (secret, *secret.split()) if len(part) >= SHORTEST}
        longest_first = sorted(parts, key=len, reverse=True)
        self._needles = [re.compile(form) for part in longest_first for form in _forms(part)]
        self._longest = LONGEST_CHARACTER * max(map(len, parts), default=0)
        self._held = b""

    @property
    def active(self) -> bool:
        """True if there is anything to black out."""
        return bool(self._needles)

    def feed(self, data: bytes) -> bytes:
        """Return what may be passed on of the stream so far."""
        if not self._needles:
            return data
        data = self.clean(self._held + data)
        keep = max(data.rfind(b"\n") + 1, len(data) - self._longest + 1, 0)
        self._held = data[keep:]
        return data[:keep]

    def end(self) -> bytes:
        """Return what was held back, at the stream's end."""
        held, self._held = self._held, b""
        return held

    def clean(self, data: bytes) -> bytes:
        """Return data without secrets."""
        for needle in self._needles:
            data = needle.sub(lambda found: b"*" * len(found[0]), data)
        return data

    def clean_text(self, text: str) -> str:
        """Return a text without secrets."""
        return self.clean(text.encode()).decode() if self._needles else text

    def contains(self, text: str) -> bool:
        """Return True if a secret stands in a text."""
        data = text.encode()
        return any(needle.search(data) for needle in self._needles)


def _forms(part: str) -> Iterable[bytes]:
    """Yield expressions. They take no longer where a text repeats beginnings of a secret: hardly any begins anew in itself."""
    yield _escaped(part)
    yield _escaped(base64.b64encode(part.encode()).decode().rstrip("="))
    yield re.escape(part.encode("utf-16-le"))
    yield re.escape(part.encode("utf-16-be"))


def _escaped(text: str) -> bytes:
    """Return an expression of an ASCII text that takes each character but letters and digits as it is, and in all escapes."""
    return "".join(one if one.isalnum() else _character(one) for one in text).encode()


def _character(one: str) -> str:
    number = ord(one)
    plain = {one, f"\\{one}", OTHERWISE.get(one, one), html.escape(one), f"&#{number};", f"&#0{number};"}
    escapes = rf"(?i:%{number:02x}|\\u00{number:02x}|&#x{number:x};)"
    return f"(?:{'|'.join(map(re.escape, sorted(plain, key=len, reverse=True)))}|{escapes})"
