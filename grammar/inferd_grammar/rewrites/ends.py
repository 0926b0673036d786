"""Look-arounds at the ends of a pattern that is not anchored there: they become characters, which anything may be followed by.

`\\bfoo(?!\\d)` is found where `(?:^|\\W)foo(?:$|\\D)` is. Such a pattern stays a search, and small.
"""

from __future__ import annotations

import re

from inferd_grammar.rewrites.regex_syntax import WORD, NotUnderstood, outer_chars, parse, subtraction

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*+\]?|\(\?<?[=!:]|.", re.DOTALL)
_OPENING = ("(", "(?:", "(?=", "(?!", "(?<=", "(?<!")


def consuming(pattern: str) -> str:
    """Return a pattern that is found in the same texts, without the look-arounds at its ends that can become characters."""
    tokens = _TOKEN.findall(pattern)
    if _has_branches(tokens):
        return pattern
    return "".join(_back(_front(tokens)))


def _has_branches(tokens: list[str]) -> bool:
    depth = 0
    for token in tokens:
        depth += (token in _OPENING) - (token == ")")
        if token == "|" and depth == 0:
            return True
    return False


def _front(tokens: list[str]) -> list[str]:
    if tokens[:1] == [r"\b"] and _is_word("".join(tokens[1:]), last=False):
        return [r"(?:^|\W)", *tokens[1:]]
    end = _closing(tokens, 0)
    if tokens[:1] == ["(?<="] and end:
        return ["(?:", *tokens[1:]]
    if tokens[:1] == ["(?<!"] and end == 2 and (other := _other(tokens[1])):
        return [f"(?:^|{other})", *tokens[3:]]
    return tokens


def _back(tokens: list[str]) -> list[str]:
    if tokens[-1:] == [r"\b"] and _is_word("".join(tokens[:-1]), last=True):
        return [*tokens[:-1], r"(?:$|\W)"]
    for start, token in enumerate(tokens):
        if token in ("(?=", "(?!") and _closing(tokens, start) == len(tokens) - 1:
            if token == "(?=":
                return [*tokens[:start], "(?:", *_back(tokens[start + 1 : -1]), ")"]
            other = _other(tokens[start + 1]) if start == len(tokens) - 3 else None
            return [*tokens[:start], f"(?:$|{other})"] if other else tokens
    return tokens


def _closing(tokens: list[str], start: int) -> int | None:
    """Return the place of the bracket that closes a group."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at] in _OPENING) - (tokens[at] == ")")
        if depth == 0:
            return at if at > start else None
    return None


def _other(token: str) -> str | None:
    """Return a class of the characters that a token does not take; None for what is not one character."""
    if token.startswith("["):
        return f"[{token[2:]}" if token.startswith("[^") else f"[^{token[1:]}"
    if len(token) == 2 and token[1] in "dswDSW":
        return f"\\{token[1].swapcase()}"
    return f"[^{token}]" if (token.isalnum() and len(token) == 1) or re.fullmatch(r"\\[^\w\s]", token) else None


def _is_word(pattern: str, *, last: bool) -> bool:
    """Return True if all that is found in a pattern begins (or ends) with a character of words in every dialect."""
    try:
        node, _ = parse(pattern if last else f"^{pattern}")
    except NotUnderstood:
        return False
    kind, parts = node
    if kind != "then":
        return False
    inner = parts[:-1] if last else parts
    chars = outer_chars((kind, inner), last=last)
    return chars is not None and not subtraction(chars, WORD)
