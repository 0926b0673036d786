"""Blacks out secrets in what a server sends back, so that one that repeats a request's headers tells the program nothing. Pure.

A server that is sent a secret can always write it in another way; hence a secret is bound to hosts that the operator trusts with
it. What is covered are the ways in which servers repeat headers: as they are, in UTF-16, in JSON, in URLs, and in Base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

SHORTEST = 8
"""Characters of a secret; and of a part of one (behind "Bearer", say) that is blacked out by itself."""


class Redactor:
    """Replaces secrets in a stream by as many asterisks.

    The end of what has come is held back, up to the length of a secret, except what stands before a line's end: no secret
    goes over one. How much is held back must not depend on what it is: else a program that has a server repeat its guesses would
    see by the pieces when one is the beginning of a secret.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        self._longest = max(map(len, self._needles), default=0)
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
            data = data.replace(needle, b"*" * len(needle))
        return data

    def clean_text(self, text: str) -> str:
        """Return a text without secrets."""
        return self.clean(text.encode()).decode() if self._needles else text

    def contains(self, text: str) -> bool:
        """Return True if a secret stands in a text."""
        data = text.encode()
        return any(needle in data for needle in self._needles)


def _forms(secret: str) -> Iterable[bytes]:
    for part in {secret, *secret.split()}:
        if len(part) >= SHORTEST:
            yield part.encode()
            yield json.dumps(part)[1:-1].encode()
            yield quote(part, safe="").encode()
            yield quote_plus(part).encode()
            yield base64.b64encode(part.encode()).rstrip(b"=")
            yield part.encode("utf-16-le")
            yield part.encode("utf-16-be")
