"""The vocabulary of a tokenizer, for bridges between models."""

from __future__ import annotations

from tokenizers import Tokenizer

from inferd_grammar import TokenTable
from inferd_runtime.models.tokenizer import encoded
from inferd_runtime.speculation.bridge import Vocabulary


def vocabulary_of(table: TokenTable) -> Vocabulary:
    """Return a tokenizer's vocabulary. Special tokens are read as the text they are written in."""
    tokenizer = Tokenizer.from_str(table.source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return Vocabulary(table.tokens, table.special_names, lambda text: encoded(tokenizer, text))
