"""Constraint -> matcher: masks, acceptance, rollback and forced tokens for grammar-constrained decoding.

Importable alone: numpy and one grammar library, no model, no torch.

    table = TokenTable.from_tokenizer_json(text, vocab_size=model_width, eos_ids=[2])
    matcher = GrammarCompiler(table).compile(JsonSchema({"type": "integer"})).matcher()
    matcher.fill(row); matcher.accept([token]); matcher.rollback(1)
"""

from inferd_grammar.compiler import Compiled, GrammarCompiler
from inferd_grammar.constraints import AnyJson, Choice, Constraint, JsonSchema, Lark, Regex
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matcher import Matcher, walk
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked, Problem

__all__ = [
    "AnyJson",
    "Checked",
    "Choice",
    "CompileLimits",
    "Compiled",
    "Constraint",
    "GrammarCompiler",
    "GrammarError",
    "GrammarFailure",
    "JsonSchema",
    "Lark",
    "Matcher",
    "Problem",
    "Regex",
    "TokenTable",
    "walk",
]
