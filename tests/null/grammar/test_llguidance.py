from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from inferd_grammar import Constraint, GrammarMatcher, TokenTable
from inferd_grammar.conformance.matcher_checks import (
    COMPOSED_CONSTRAINTS,
    GRAMMAR_CONSTRAINTS,
    JSON_CONSTRAINTS,
    TAGGED_CONSTRAINTS,
    TEXT_CONSTRAINTS,
    check_matcher,
)

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
