from __future__ import annotations

import pytest

from inferd_grammar import (
    AnyJsonGrammar,
    Constraint,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    JsonSchemaGrammar,
    LarkGrammar,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import JSON_CONSTRAINTS, TEXT_CONSTRAINTS, check_matcher, language

pytest.importorskip("outlines_core", reason="the optional backend is not installed")


@pytest.fixture(scope="module")
def outlines(table: TokenTable) -> GrammarCompiler:
    return GrammarCompiler(table, backend="outlines")


def test_conforms(outlines: GrammarCompiler, table: TokenTable) -> None:
    def make(constraint: Constraint) -> GrammarMatcher:
        return outlines.compile(constraint).matcher()

    check_matcher(make, table, TEXT_CONSTRAINTS)


@pytest.mark.parametrize("constraint", [LarkGrammar('start: "a"'), AnyJsonGrammar()])
def test_other_kinds_are_refused_by_name(outlines: GrammarCompiler, constraint: Constraint) -> None:
    with pytest.raises(GrammarError, match=f"does not support {type(constraint).__name__}"):
        outlines.compile(constraint)


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "a$b", "^a", "a$", r"(a)\1"])
def test_patterns_it_cannot_hold_are_refused(outlines: GrammarCompiler, pattern: str) -> None:
    with pytest.raises(GrammarError, match="outlines_core"):
        outlines.compile(RegexGrammar(pattern))


def test_rollback_is_not_bounded_by_the_librarys_ring(outlines: GrammarCompiler, table: TokenTable) -> None:
    matcher = outlines.compile(RegexGrammar("(a|b){100}")).matcher()
    single = table.tokens.index(b"a")
    assert matcher.accept([single] * 100) == 100
    matcher.rollback(100)
    assert matcher.depth == 0
    assert matcher.accept([single]) == 1


def test_json_schemas_on_the_whitelist_conform(outlines: GrammarCompiler, table: TokenTable) -> None:
    def make(constraint: Constraint) -> GrammarMatcher:
        return outlines.compile(constraint).matcher()

    check_matcher(make, table, [JSON_CONSTRAINTS[1]])


def test_json_schemas_keep_their_language(outlines: GrammarCompiler, table: TokenTable) -> None:
    properties = {"a": {"enum": [1, None]}, "b": {"const": "x"}}
    schema = {"type": "object", "properties": properties, "required": ["b"], "additionalProperties": False}
    got = language(outlines.compile(JsonSchemaGrammar(schema)).matcher(), table, 30)
    assert got == {b'{"b":"x"}', b'{"a":1,"b":"x"}', b'{"a":null,"b":"x"}'}
