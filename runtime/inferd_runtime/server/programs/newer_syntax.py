"""Source of a newer Python in words of an older one, so that what a program says of itself can be read there. Pure.

The sandbox has Python 3.14, and a server may run on 3.11. Of what came between, this takes away: what stands in f-strings and
t-strings, ``type`` statements, type parameters of functions and classes, and several exceptions without parentheses.
"""

from __future__ import annotations

import re

OPENS_STRING = re.compile(r"(?<!\w)([rbu]?|[ft]r?|r[fbt]|br)(\"\"\"|'''|\"|')", re.IGNORECASE)
PASSAGE = re.compile(rf"#[^\n]*|{OPENS_STRING.pattern}", re.IGNORECASE)
NOT_NEWLINE = re.compile(r"[^\n]")
NAMED = re.compile(r"\b(?:def|class)[ \t]+[^\W\d]\w*[ \t]*(?=\[)")
ALIAS = re.compile(r"^[ \t]*(type[ \t]+)[^\W\d]\w*[ \t]*(?=[\[=])", re.MULTILINE)
EXCEPTIONS = re.compile(r"^[ \t]*except(?:[ \t]*\*)?[ \t]+([\w.]+[ \t]*(?:,[ \t]*[\w.]+[ \t]*)+)(?=:)", re.MULTILINE)
OPENING, CLOSING = "([{", ")]}"
MOST_NESTED = 20
"""Strings in fields of strings."""
Edit = tuple[int, int, str]


def older(source: str) -> str:
    """Return the source without what Python 3.11 cannot parse; lines stay where they are. Other source is unchanged.

    Raises SyntaxError for a string that does not end.
    """
    text, code = _plain_strings(source)
    edits: list[Edit] = []
    for found in ALIAS.finditer(code):
        edits.append((found.start(1), found.end(1), ""))
    for found in (*ALIAS.finditer(code), *NAMED.finditer(code)):
        if code[found.end()] == "[":
            edits.append((found.end(), _closed(code, found.end() + 1), ""))
    for found in EXCEPTIONS.finditer(code):
        edits.append((found.start(1), found.end(1), f"({text[found.start(1) : found.end(1)]})"))
    return _edited(text, edits)


def _plain_strings(source: str) -> tuple[str, str]:
    """Return the source with empty strings for f-strings and t-strings, and the same with nothing in strings and comments."""
    text: list[str] = []
    code: list[str] = []
    at = 0
    while (found := PASSAGE.search(source, at)) is not None:
        start, end = found.start(), _string_end(source, found) if found[2] else found.end()
        passage = source[start:end]
        if found[2] and _is_formatted(found):
            lines = "\n" * passage.count("\n")
            passage = f'"""{lines}"""' if lines else '""'
        text += [source[at:start], passage]
        code += [source[at:start], NOT_NEWLINE.sub(" ", passage)]
        at = end
    return "".join([*text, source[at:]]), "".join([*code, source[at:]])


def _string_end(source: str, opening: re.Match[str], depth: int = 0) -> int:
    """Return the place behind a string. Raises SyntaxError for one without an end, or with too many others in its fields."""
    if depth > MOST_NESTED:
        raise SyntaxError("f-strings are nested too deeply")
    quote, at, formatted = opening[2], opening.end(), _is_formatted(opening)
    while at < len(source) and not source.startswith(quote, at):
        if source[at] == "\n" and len(quote) == 1:
            break
        if formatted and source.startswith("{{", at):
            at += 2
        elif formatted and source[at] == "{":
            at = _field_end(source, at + 1, depth)
        else:
            at += 1 + (source[at] == "\\")
    if not source.startswith(quote, at):
        raise SyntaxError("a string does not end")
    return at + len(quote)


def _field_end(source: str, at: int, nesting: int) -> int:
    """Return the place behind a field of an f-string, whose format may have fields of its own and any other characters."""
    depth = 0
    while at < len(source):
        letter = source[at]
        if not depth and letter in ":}":
            break
        if (found := PASSAGE.match(source, at)) is not None:
            at = _string_end(source, found, nesting + 1) if found[2] else found.end()
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
            at += 1
    while at < len(source) and source[at] not in "}\n":
        at = _field_end(source, at + 1, nesting + 1) if source[at] == "{" else at + 1
    return at + 1


def _closed(code: str, at: int) -> int:
    """Return the place behind the bracket that closes the one before ``at``, in source without strings and comments."""
    depth = 1
    while at < len(code) and depth:
        depth += (code[at] in OPENING) - (code[at] in CLOSING)
        at += 1
    return at


def _edited(text: str, edits: list[Edit]) -> str:
    """Return a text with pieces replaced, each of which keeps its line ends."""
    parts, at = [], 0
    for start, end, instead in sorted(edits):
        parts += [text[at:start], instead]
        at = end
    return "".join([*parts, text[at:]])


def _is_formatted(opening: re.Match[str]) -> bool:
    return any(letter in "ft" for letter in opening[1].lower())
