"""Constraints over a vocabulary of single bytes, and whether they allow a text."""

from __future__ import annotations

import random

import numpy as np

from inferd_grammar import Constraint, GrammarCompiler, GrammarFailure, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())


def takes(constraint: Constraint, text: str) -> bool:
    """Return True if masks allow the text byte by byte, to a place where it may end."""
    matcher, ids = BYTES.compile(constraint).matcher(), [byte + 1 for byte in text.encode()]
    try:
        return matcher.accept(ids) == len(ids) and matcher.may_end()
    except GrammarFailure:
        return False


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
