"""Constraint -> matcher: masks, acceptance, rollback and forced tokens for grammar-constrained decoding.

Importable alone: numpy and one grammar library, no model, no torch.

    table = TokenTable.from_tokenizer_json(text, vocab_size=model_width, eos_ids=[2])
    matcher = GrammarCompiler(table).compile(JsonSchemaGrammar({"type": "integer"})).matcher()
    matcher.fill(row); matcher.accept([token]); matcher.rollback(1)
"""

from inferd_grammar.compiler import Compiled, GrammarCompiler
from inferd_grammar.completion.plan import EndPlanner
from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import GrammarMatcher, GuardedMatcher, walk
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked, Problem

__all__ = [
    "AllOfGrammar", "AnyJsonGrammar", "AnyOfGrammar", "Checked", "ChoiceGrammar", "CompileLimits", "Compiled", "Constraint",
    "EndPlanner", "ExactGrammar", "GbnfGrammar", "GrammarCompiler", "GrammarError", "GrammarFailure", "JsonSchemaGrammar",
    "JsonTextGrammar", "LarkGrammar", "GrammarMatcher", "GuardedMatcher", "PrefixedGrammar", "Problem", "RegexGrammar",
    "RepeatedGrammar", "SequenceGrammar", "TagGrammar", "TaggedGrammar", "TextGrammar", "TokenTable", "UntilGrammar", "walk",
]  # fmt: skip
