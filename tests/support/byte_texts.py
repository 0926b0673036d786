"""Constraints over a vocabulary of single bytes, and whether they allow a text."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from inferd_grammar import Constraint, GrammarCompiler, GrammarFailure, GrammarMatcher, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())


def taken(matcher: GrammarMatcher, text: str) -> bool:
    """Return True if a matcher's masks allow the text byte by byte, to a place where it may end."""
    ids = [byte + 1 for byte in text.encode()]
    return matcher.accept(ids) == len(ids) and matcher.may_end()


def takes(constraint: Constraint, text: str) -> bool:
    """Return True if a constraint's masks allow the text; False, too, where they come to a dead end."""
    try:
        return taken(BYTES.compile(constraint).matcher(), text)
    except GrammarFailure:
        return False


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def random_text(constraint: Constraint, rng: random.Random, liked: str = "", most: int = 60) -> str | None:
    """Return a text of a random walk, mostly of printable characters and those that are ``liked``; None where it does not come
    to an end.
    """
    matcher = BYTES.compile(constraint).matcher()
    row = np.zeros(matcher.words, np.int32)
    found = bytearray()
    while len(found) < most:
        matcher.fill(row)
        legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        if 0 in legal and (len(legal) == 1 or rng.random() < 0.25):
            return found.decode(errors="replace")
        wanted = [token for token in legal if token and chr(token - 1) in liked] if rng.random() < 0.4 else []
        plain = [token for token in legal if 32 <= token - 1 < 127] if rng.random() < 0.9 else []
        token = rng.choice(wanted or plain or [token for token in legal if token])
        assert matcher.accept([token]) == 1
        found.append(token - 1)
    return None
