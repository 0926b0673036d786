"""Regular expressions that mean the same to xgrammar as everywhere else, and the rest refused by name.

xgrammar lets `.` match a line feed, ignores `^` and `$`, and reads `\\d` as ASCII where Rust reads Unicode.
"""

from __future__ import annotations

import re

from inferd_grammar.errors import GrammarError

_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_CHARACTER = rf"\\{_PUNCTUATION}|\\[nrt]|[^\\\[\](){{}}|*+?.^$]"
_IN_CLASS = rf"\\{_PUNCTUATION}|\\[nrt]|[^\\\[\]&~^-]"
_PIECE = re.compile(
    rf"(?P<any>\.)|\(\?:|\((?!\?)|[)|]|\[\^?(?:(?:{_IN_CLASS})(?:-(?:{_IN_CLASS}))?)+\]|{_CHARACTER}"
    r"|(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{])"
)


def portable(pattern: str, backend: str) -> str:
    """Return the pattern for the backend, `.` written out. Raises GrammarError that names the piece it does not take."""
    pieces, at = [], 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            raise GrammarError(f"{backend} does not take {pattern[at : at + 12]!r} in a regular expression")
        pieces.append(r"[^\n]" if found["any"] else found[0])
        at = found.end()
    return "".join(pieces)
