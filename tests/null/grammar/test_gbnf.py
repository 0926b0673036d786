"""llama.cpp's notation: its language is kept, also where a greedy lexer would lose some of it."""

from __future__ import annotations

import re
from itertools import product

import pytest

from inferd_grammar import (
    AllOfGrammar,
    CompileLimits,
    GbnfGrammar,
    GrammarCompiler,
    GrammarError,
    LarkGrammar,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import language
from inferd_grammar.gbnf import gbnf_to_lark

RECURSIVE = 'never ::= "~" root "~"\n'  # with this no single regular expression exists


@pytest.mark.parametrize("recursive", [False, True], ids=["regular", "recursive"])
@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('root ::= "a" | "ab" | ""', "a|ab|"),
        ("root ::= x y # comment\nx ::= [a-c]+\ny ::=\n  [a-d]+\n", "[a-c]+[a-d]+"),
        ('root ::= ("a" | b)* "c"\nb ::= "b"', "[ab]*c"),
        ("root ::= [^a-c\\n] .?", r"[^a-c\n][\s\S]?"),
        ('root ::= "ab"{2} | "c"{1,2} | "d"{2,}', "abab|cc?|dd+"),
        (r'root ::= "\x61\u0062\U00000063" [\]\\-]', r"abc[\]\\-]"),
        ('root ::= (\n"a"\n|\n"b" )+ "c"?', "[ab]+c?"),
        ('root ::= a-b | aB\na-b ::= "a"\naB ::= "b"', "a|b"),
        ("root ::= [a-]", "[a-]"),
        ('root ::= "a"\n  | b # either\n\n  | "c"\nb ::= "b"', "[abc]"),
        (r'root ::= [a\-c\^]{1,2} "\'\/"?', r"[a\-c^]{1,2}('/)?"),
        ('root ::= "a"*?', "a*"),
    ],
)
def test_the_language_is_kept(
    compiler: GrammarCompiler, table: TokenTable, text: str, pattern: str, recursive: bool
) -> None:
    alphabet = "abcd\n]\\-"
    if recursive:
        text = f"{text.replace('root ::=', 'root ::= never | start' + chr(10) + 'start ::=')}\n{RECURSIVE}"
    assert ("TEXT" in gbnf_to_lark(text, max_regex=1000, max_rules=9)) != recursive
    texts = ("".join(letters) for size in range(5) for letters in product(alphabet, repeat=size))
    expected = {text.encode() for text in texts if re.fullmatch(pattern, text)}
    only = RegexGrammar(f"[{re.escape(alphabet)}]*")
    matcher = compiler.compile(AllOfGrammar((GbnfGrammar(text), only))).matcher()
    assert language(matcher, table, 4) == expected


def test_recursion(compiler: GrammarCompiler, table: TokenTable) -> None:
    matcher = compiler.compile(GbnfGrammar('root ::= "(" root ")" | "x"')).matcher()
    assert language(matcher, table, 7) == {b"x", b"(x)", b"((x))", b"(((x)))"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= missing", "no rule 'missing'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root = "a"', "line 1: expected ::="),
        ('start: "a"', "whose rules have a colon is Lark"),
        ('root ::= "a', 'missing "'),
        ("root ::= [a", "missing ]"),
        ("root ::= []", "empty character class"),
        ("root ::= [z-a]", "out of order"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\é"', "unknown escape"),
        ('root ::= "a"\n  | "b"\n  "c"', "line 3: unexpected"),
        (r'root ::= "\uD800"', "no Unicode character"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a")', "unexpected ')'"),
        ('root ::= "a"{2,1}', "out of order"),
        ('root ::= "a"{x}', "expected {n}"),
        ('root ::= "a"{99999999999}', "out of order or above"),
        ("root ::= <[12]>", "references to tokens are not supported"),
        ("root ::= " + "(" * 200, "nest deeper"),
        ('root ::= "a"' + "*" * 200, "repeats of one item"),
        ("root ::= root", "GBNF|llguidance"),
    ],
)
def test_what_is_no_grammar_is_refused(compiler: GrammarCompiler, text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason) if "|" not in reason else reason):
        compiler.compile(GbnfGrammar(text))


def test_size_is_limited(table: TokenTable) -> None:
    with pytest.raises(GrammarError, match="max_bytes is 30"):
        GrammarCompiler(table, limits=CompileLimits(max_bytes=30)).compile(GbnfGrammar('root ::= "a"' + " " * 40))


@pytest.mark.parametrize(("count", "refused"), [(990, False), (3000, True)])
def test_a_chain_of_rules_does_not_overflow_a_stack(compiler: GrammarCompiler, count: int, refused: bool) -> None:
    """llguidance ends the process on a chain of 3,000 rules."""
    gbnf = "\n".join(f"r{n} ::= r{n + 1}" for n in range(count))
    lark = "\n".join(f"r{n}: r{n + 1}" for n in range(count))
    for grammar in (
        GbnfGrammar(f'root ::= r0\n{gbnf}\nr{count} ::= "a"'),
        LarkGrammar(f'start: r0\n{lark}\nr{count}: "a"'),
    ):
        if refused:
            with pytest.raises(GrammarError, match="max_rules is 1000"):
                compiler.compile(grammar)
        else:
            assert compiler.compile(grammar).matcher().forced() == b"a"


def test_a_grammar_that_is_too_large_for_the_library_is_refused_without_its_calls(compiler: GrammarCompiler) -> None:
    rules = [f'r{i} ::= "w{i}x" r{(i * 7 + 1) % 900} | "{"q" * 80}{i}" | [a-z]+' for i in range(900)]
    names = " | ".join(f"r{i}" for i in range(900))
    with pytest.raises(GrammarError) as refusal:
        compiler.compile(GbnfGrammar("\n".join([f"root ::= ({names})+", *rules])))
    assert "llguidance" in refusal.value.reason
    assert "backtrace" not in refusal.value.reason
