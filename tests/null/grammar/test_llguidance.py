from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from inferd_grammar import (
    Constraint,
    GrammarCompiler,
    GrammarError,
    GrammarFailure,
    GrammarMatcher,
    LarkGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import (
    COMPOSED_CONSTRAINTS,
    GRAMMAR_CONSTRAINTS,
    JSON_CONSTRAINTS,
    TAGGED_CONSTRAINTS,
    TEXT_CONSTRAINTS,
    check_matcher,
)

from .conftest import byte_level

KINDS = {
    "text": TEXT_CONSTRAINTS,
    "json": JSON_CONSTRAINTS,
    "grammar": GRAMMAR_CONSTRAINTS,
    "tagged": TAGGED_CONSTRAINTS,
    "composed": COMPOSED_CONSTRAINTS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_conforms(make: Callable[[Constraint], GrammarMatcher], table: TokenTable, kind: str) -> None:
    check_matcher(make, table, KINDS[kind])


WALK = """
import sys
from inferd_grammar import ExactGrammar, GrammarCompiler, LarkGrammar, TaggedGrammar, TagGrammar, TokenTable

lark, text = LarkGrammar(sys.argv[1]), sys.argv[2]
compiler = GrammarCompiler(TokenTable.of_bytes())
for constraint in (lark, ExactGrammar(lark), TaggedGrammar((TagGrammar("<", lark, ">"),))):
    matcher = compiler.compile(constraint).matcher()
    tokens = [byte + 1 for byte in (f"<{text}" if isinstance(constraint, TaggedGrammar) else text).encode()]
    assert matcher.accept(tokens) == len(tokens), constraint
    assert 0 < len(matcher.forced()) <= 64, constraint
    assert matcher.accept(matcher.forced_tokens()) > 0, constraint
"""


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: /[b-z]/ A "a"\nA: /a+/', "xaaa"),
        ("start: /[b-z]/ A B\nA: /a*/\nB: /ab/", "xaaa"),
        ('start: /[b-z]/ A "ab"\nA: /(ab)+/', "xababab"),
    ],
)
def test_one_byte_that_can_follow_for_ever_does_not_stop_the_step_loop(grammar: str, text: str) -> None:
    """In a child, as nothing ends the library's search for what must come."""
    done = subprocess.run([sys.executable, "-c", WALK, grammar, text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tokenizer", [byte_level], indirect=True)  # it takes long with any of them
def test_a_grammar_that_becomes_too_much_for_the_library_is_told_from_a_bug(table: TokenTable) -> None:
    """Every letter may be any of 200 rules."""
    names = [f"r{one}" for one in range(200)]
    rules = [f"{name}: /[a-z]/ | r{(at * 7 + 1) % 200} r{(at * 3 + 2) % 200}" for at, name in enumerate(names)]
    tangled = "\n".join(["start: x+", f'x: {" x | ".join(names)} x | "z"', *rules])
    matcher, row = GrammarCompiler(table).compile(LarkGrammar(tangled)).matcher(), np.empty(table.words, np.int32)

    def go_on() -> None:
        for _ in range(30):
            matcher.fill(row)
            legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            assert matcher.accept([int(next(each for each in legal if each not in table.eos_ids))])

    with pytest.raises(GrammarFailure) as caught:
        go_on()
    assert caught.value.is_limit
    assert not GrammarFailure("llguidance did not roll back 2 tokens").is_limit


def test_a_refusal_names_the_line_of_the_grammar_as_it_was_written(compiler: GrammarCompiler) -> None:
    """A line of ours stood before it."""
    with pytest.raises(GrammarError, match=r"at 2\(\d+\): unknown name: \"\w+\"$"):
        compiler.compile(LarkGrammar('start: a\na: "if" b'))
