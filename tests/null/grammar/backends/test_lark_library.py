"""Grammars with what Lark has and llguidance does not, and terminals as Lark's lexer ends them."""

from __future__ import annotations

import random
from pathlib import Path

import lark
import numpy as np
import pytest

from inferd_grammar import GrammarCompiler, GrammarError, LarkGrammar, TokenTable

MOST = 60
FEATURES = {
    "priorities": 'start: (IF | NAME)+\nIF.2: "if"\nNAME.-1: /[a-z]+/\n%ignore " "',
    "rule priorities": "start: a | b\na.2: /[0-9]+/\nb.1: /[0-9a-f]+/",
    "aliases": 'start: "a" start -> more\n     | "b" -> last',
    "a template": 'start: "[" _list{value} "]"\n_list{item}: item ("," item)*\nvalue: /[0-9]/ | "[" _list{value} "]"',
    "imports": "%import common.SIGNED_NUMBER\n%import common (WS_INLINE, ESCAPED_STRING)\n"
    'start: (SIGNED_NUMBER | ESCAPED_STRING) ("," start)?\n%ignore WS_INLINE',
    "imports of Python's": "%import python.HEX_NUMBER -> NUMBER\nstart: NUMBER",
    "counts": "start: (A B)~2..3 C~2\nA.1: /a/\nB: /b/\nC: /c/",
    "a literal beyond ASCII": 'start: ("é" | A)+\nA.1: "a"',
    "cases": 'start: A | /x/i\nA.1: "select"i',
    "a string up to its quote": 'start: STRING ("+" STRING)*\nSTRING: /".*?"/',
    "a string with escapes": 'start: STRING ("," STRING)*\n_INNER: /.*?/\n_ESCAPED: _INNER /(?<!\\\\)(\\\\\\\\)*?/\n'
    'STRING: "\\"" _ESCAPED "\\""',
    "a comment": 'start: COMMENT "x" COMMENT\nCOMMENT: /\\/\\*(a|\\*|\\n)*?\\*\\//',
    "a look-ahead inside": "start: (WORD ';')+\nWORD: /(?!no)[a-z]{2,4}/".replace("'", '"'),
    "rules that nothing needs": 'start: "a"\nother.2: LOOKS\nLOOKS: /a(?=b)/',
}
MANY_INSTANCES = "\n".join(
    ["start.1: b{A}", "A: /a/", f"b{{x}}: {' | '.join(f'c{n}{{x}}' for n in range(600))}"]
    + [f"c{n}{{x}}: x /{n}/" for n in range(600)]
)
REFUSED = {
    "start: A\nA: /a(?=b)/": "Lark terminal A: .* looks at what stands before or behind",
    "start: A\nA: /(?<!b)a/": "Lark terminal A: .* looks at what stands before or behind",
    r"start: A" "\n" r"A: /a\b/": "Lark terminal A: .* looks at what stands before or behind",
    'start: "a" /.*?/ "b"': "a lazy quantifier at the end of a terminal takes nothing",
    "%declare A\nstart: A\nb.2: A": "declares the terminal A",
    "%import .other.rule\nstart: rule": "imports another file, 'other'",
    "%import other.rule\nstart: rule": "imports another file, 'other'",
    'expr.2: "a"': "no rule `start`",
    "start: t{t{A}}\nt{x}: x | t{t{x}}\nA: /a/": "a template .* that is given a template",
    MANY_INSTANCES: "max_rules is 1000",
    "expr: a{b, c}\na{x}: x\nstart.1: expr\nb: /b/\nc: /c/": "llguidance",
    'start: %json {"type": "string"} /a*?/': "a lazy quantifier in a grammar that Lark itself cannot read",
}  # fmt: skip


@pytest.fixture(scope="module")
def bytes_compiler() -> GrammarCompiler:
    return GrammarCompiler(TokenTable.of_bytes())


def _text(compiler: GrammarCompiler, grammar: str, rng: random.Random) -> str | None:
    """Return a text of a random walk; None where it does not come to an end."""
    matcher = compiler.compile(LarkGrammar(grammar)).matcher()
    row = np.zeros(matcher.words, np.int32)
    found = bytearray()
    while len(found) < MOST:
        matcher.fill(row)
        legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        if 0 in legal and (len(legal) == 1 or rng.random() < 0.3):
            return found.decode(errors="replace")
        readable = [token for token in legal if 32 <= token - 1 < 127]
        token = rng.choice(readable or [token for token in legal if token])
        assert matcher.accept([token]) == 1
        found.append(token - 1)
    return None


@pytest.mark.parametrize("grammar", FEATURES.values(), ids=FEATURES)
def test_what_is_written_is_what_lark_reads(bytes_compiler: GrammarCompiler, grammar: str) -> None:
    parser, rng = lark.Lark(grammar), random.Random(1)
    texts = [text for _ in range(40) if (text := _text(bytes_compiler, grammar, rng)) is not None]
    assert texts
    for text in texts:
        parser.parse(text)


@pytest.mark.parametrize(
    ("feature", "texts"),
    [
        ("priorities", ["if", "if if iffy", "x"]),
        ("a template", ["[1]", "[1,[2,3],4]"]),
        ("imports", ["-1.5e3", '"a\\"b" , 2']),
        ("counts", ["ababcc", "abababcc"]),
        ("cases", ["SeLeCt", "X"]),
        ("a literal beyond ASCII", ["é", "éaé"]),
        ("a string up to its quote", ['""', '"a"+"b"']),
        ("a string with escapes", ['"a\\\\"', '"\\"","b"']),
        ("a comment", ["/**/x/*a*\n**/"]),
        ("a look-ahead inside", ["yes;", "onno;ab;"]),
    ],
)
def test_texts_of_a_grammar_are_taken(bytes_compiler: GrammarCompiler, feature: str, texts: list[str]) -> None:
    for text in texts:
        lark.Lark(FEATURES[feature]).parse(text)
        matcher = bytes_compiler.compile(LarkGrammar(FEATURES[feature])).matcher()
        tokens = [byte + 1 for byte in text.encode()]
        assert (matcher.take(tokens), matcher.may_end()) == (len(tokens), True), text


@pytest.mark.parametrize(("grammar", "reason"), REFUSED.items())
def test_what_cannot_be_held_is_refused_by_name(bytes_compiler: GrammarCompiler, grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        bytes_compiler.compile(LarkGrammar(grammar))


def test_a_comment_has_no_lazy_quantifier(bytes_compiler: GrammarCompiler) -> None:
    bytes_compiler.compile(LarkGrammar('start: %json {"type": "string"} // as in /a*?/'))


def test_no_import_reads_a_file(
    bytes_compiler: GrammarCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.lark").write_text('x: "secret"')
    for name in ("secret.x", ".secret.x"):
        with pytest.raises(GrammarError, match="imports another file"):
            bytes_compiler.compile(LarkGrammar(f"%import {name}\nstart: x\nother.2: x"))
