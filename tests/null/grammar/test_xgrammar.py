"""The optional backend xgrammar: the promises of every matcher, and the languages it must not change."""

from __future__ import annotations

import re
from itertools import product

import pytest

from inferd_grammar import (
    AllOfGrammar,
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    JsonSchemaGrammar,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import JSON_CONSTRAINTS, TEXT_CONSTRAINTS, check_matcher, language

pytest.importorskip("xgrammar", reason="the optional backend is not installed")

SCHEMAS = (
    JsonSchemaGrammar(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 199}},
            "required": ["name"],
            "additionalProperties": False,
        }
    ),
    JsonSchemaGrammar({"type": "array", "items": {"enum": ["a", "ab", 1, 12, None, True]}, "maxItems": 4}),
    JsonSchemaGrammar({"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"}),
    AllOfGrammar((RegexGrammar("[a-z]{2,6}"), RegexGrammar("(ab|cd)*"))),
)


@pytest.fixture(scope="module")
def xgrammar(table: TokenTable) -> GrammarCompiler:
    return GrammarCompiler(table, backend="xgrammar")


@pytest.mark.parametrize("kinds", [TEXT_CONSTRAINTS, SCHEMAS], ids=["text", "json"])
def test_conforms(xgrammar: GrammarCompiler, table: TokenTable, kinds: tuple[Constraint, ...]) -> None:
    def make(constraint: Constraint) -> GrammarMatcher:
        return xgrammar.compile(constraint).matcher()

    check_matcher(make, table, kinds)


@pytest.mark.parametrize("pattern", ["a|ab", "(a|ab)(c|bd)", "a*?b?", "|a|ab", "(ab|cd){0,2}", "(a|b)*c", "", "[^b]a."])
def test_regular_expressions_keep_their_language(xgrammar: GrammarCompiler, table: TokenTable, pattern: str) -> None:
    texts = ("".join(letters) for size in range(4) for letters in product("abcd\n", repeat=size))
    expected = {text.encode() for text in texts if re.fullmatch(pattern, text)}
    got = language(
        xgrammar.compile(AllOfGrammar((RegexGrammar(pattern), RegexGrammar("[abcd\\n]*")))).matcher(), table, 3
    )
    assert got == expected


@pytest.mark.parametrize("text", ["a.b*", "x|y", "é🐢", "line\nline", "#- &~", "\\d", " lead", '"q"', "\x00b", ".a1"])
def test_options_are_literal(xgrammar: GrammarCompiler, table: TokenTable, text: str) -> None:
    got = language(xgrammar.compile(ChoiceGrammar((text, "other"))).matcher(), table, 40)
    assert got == {text.encode(), b"other"}


@pytest.mark.parametrize("constraint", [AnyJsonGrammar(), JSON_CONSTRAINTS[2]])
def test_what_it_does_not_enforce_is_refused(xgrammar: GrammarCompiler, constraint: Constraint) -> None:
    with pytest.raises(GrammarError, match=r"does not (support|enforce)"):
        xgrammar.compile(constraint)
