"""Regular expressions and choices: the language is the one the pattern says, in every backend."""

from __future__ import annotations

import re
from itertools import product

import pytest

from inferd_grammar import (
    ChoiceGrammar,
    CompileLimits,
    Constraint,
    GrammarCompiler,
    GrammarError,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import language

BACKENDS = ["llguidance", "outlines"]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, table: TokenTable) -> GrammarCompiler:
    if request.param == "outlines":
        pytest.importorskip("outlines_core", reason="the optional backend is not installed")
    return GrammarCompiler(table, backend=request.param)


@pytest.mark.parametrize(
    "pattern",
    ["a|ab", "(a|ab)(c|bd)", "a*?b?", "a??", "|a|ab", "[ab]{1,3}", "(?i)aB", "(ab|cd){0,2}", "a*b*", "(a|b)*c", ""],
)
def test_no_alternative_is_dropped(backend: GrammarCompiler, table: TokenTable, pattern: str) -> None:
    """outlines_core alone prefers the leftmost alternative and loses the others."""
    texts = ("".join(letters) for size in range(5) for letters in product("abcdAB", repeat=size))
    expected = {text.encode() for text in texts if re.fullmatch(pattern, text)}
    assert language(backend.compile(RegexGrammar(pattern)).matcher(), table, 4) == expected


@pytest.mark.parametrize(
    "text", ["a.b*", "x|y", "[", "é🐢", "line\nline", "#- &~", "\\d", " lead", '"q"', "<|im_end|>"]
)
def test_options_are_literal(backend: GrammarCompiler, table: TokenTable, text: str) -> None:
    options = (text, "other")
    got = language(backend.compile(ChoiceGrammar(options)).matcher(), table, 40)
    assert got == {option.encode() for option in options}


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?=a)b", r"(a)\1", "a{2,1}", r"\Bfoo", "[c"])
def test_bad_and_unsupported_patterns_are_refused(backend: GrammarCompiler, pattern: str) -> None:
    with pytest.raises(GrammarError):
        backend.compile(RegexGrammar(pattern))


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (RegexGrammar("a" * 11), "regex has 11 characters; max_regex is 10"),
        (ChoiceGrammar(("a", "b", "c", "d")), "choice has 4 options; max_enum is 3"),
        (ChoiceGrammar(("a" * 30, "b" * 30)), "bytes; max_bytes is 50"),
        (ChoiceGrammar(()), "at least one option"),
        (ChoiceGrammar((1,)), "must be text"),  # type: ignore[arg-type]
        (RegexGrammar("\ud800"), "not Unicode text"),
        (ChoiceGrammar(("\ud800",)), "not Unicode text"),
    ],
)
@pytest.mark.parametrize("name", BACKENDS)
def test_limits_are_named(table: TokenTable, name: str, constraint: Constraint, reason: str) -> None:
    compiler = GrammarCompiler(table, backend=name, limits=CompileLimits(max_bytes=50, max_enum=3, max_regex=10))
    with pytest.raises(GrammarError, match=reason):
        compiler.compile(constraint)
