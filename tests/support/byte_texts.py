"""Constraints over a vocabulary of single bytes, and whether they allow a text."""

from __future__ import annotations

from inferd_grammar import Constraint, GrammarCompiler, GrammarFailure, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())


def takes(constraint: Constraint, text: str) -> bool:
    """Return True if masks allow the text byte by byte, to a place where it may end."""
    matcher, ids = BYTES.compile(constraint).matcher(), [byte + 1 for byte in text.encode()]
    try:
        return matcher.accept(ids) == len(ids) and matcher.may_end()
    except GrammarFailure:
        return False
