"""The tokenizer as llguidance reads it: checked against the table, token by token."""

from __future__ import annotations

import json

import llguidance

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.regex_dialect import LINE_ENDS
from inferd_grammar.tokens import TokenTable, space_marks

SLICES = [r"[\x20\x0A\x0D\x09]+", *(rf'[^"\\\x00-\x1F\x7F{LINE_ENDS}]{n}' for n in ("{1,10}", "{1,30}", "+"))]
"""Tokens that most strings take all of, so that masks need not look at each. The library's own hold what `.` does not take."""


def readable(source: str) -> str:
    """Return the tokenizer with a decoder that the library reads right: it knows no `Metaspace`, and takes its mark for text."""
    data = json.loads(source)
    if '"Metaspace"' not in json.dumps(data["decoder"]):
        return source
    marks = [
        {"type": "Replace", "pattern": {"String": mark}, "content": text} for mark, text in space_marks(data["decoder"])
    ]
    steps = [*marks, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return json.dumps({**data, "decoder": {"type": "Sequence", "decoders": steps}})


def require_same_tokens(tokenizer: llguidance.LLTokenizer, table: TokenTable) -> None:
    """Raise GrammarError for a token that the library decodes differently."""
    for i, token in enumerate(table.tokens):
        if b"\xff" in token or not (token or i in table.special_ids):
            continue  # never legal: the library's own mark, and ids without a token, which it calls "<[id]>"
        if tokenizer.is_special_token(i) != (not token):
            raise GrammarError(f"token {i}: llguidance and the token table differ on whether it is special")
        if token and tokenizer.decode_bytes([i]) != token:
            raise GrammarError(f"token {i}: llguidance decodes {tokenizer.decode_bytes([i])!r}, the table {token!r}")
