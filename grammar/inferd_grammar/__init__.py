"""Constraint -> matcher: masks, acceptance, rollback and forced tokens for grammar-constrained decoding.

Importable alone: numpy and one grammar library, no model, no torch.

    table = TokenTable.from_tokenizer_json(text, vocab_size=model_width, eos_ids=[2])
    matcher = GrammarCompiler(table).compile(JsonSchema({"type": "integer"})).matcher()
    matcher.fill(row); matcher.accept([token]); matcher.rollback(1)
"""

from inferd_grammar.compiler import Compiled, GrammarCompiler
from inferd_grammar.constraints import (
    AllOf,
    AnyJson,
    Choice,
    Constraint,
    Exact,
    Gbnf,
    JsonSchema,
    Lark,
    Prefixed,
    Regex,
    Tag,
    Tagged,
)
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matcher import Matcher, walk
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked, Problem

__all__ = [
    "AllOf",
    "AnyJson",
    "Checked",
    "Choice",
    "CompileLimits",
    "Compiled",
    "Constraint",
    "Exact",
    "Gbnf",
    "GrammarCompiler",
    "GrammarError",
    "GrammarFailure",
    "JsonSchema",
    "Lark",
    "Matcher",
    "Prefixed",
    "Problem",
    "Regex",
    "Tag",
    "Tagged",
    "TokenTable",
    "walk",
]
