"""Partial rejection against a fresh replay, and every id against its mask bit: each backend over three tokenizers.

EOS stands in the drafts; the masks are the canonical ones and the exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import pytest

from inferd_grammar import Constraint, ExactGrammar, GrammarCompiler, GrammarMatcher, TokenTable
from inferd_grammar.conformance.matcher_checks import JSON_CONSTRAINTS, TEXT_CONSTRAINTS, check_matcher, legal_ids

from .conftest import byte_fallback, byte_level, table_of


def padded() -> TokenTable:
    """Three EOS ids, one of them behind the trained vocabulary, and logits far wider than it."""
    tokenizer = byte_level()
    tokenizer.add_tokens(["<|eot|>"])
    names = tokenizer.get_vocab()
    eos = [names[name] for name in ("<|eot|>", "<|im_end|>", "<|endoftext|>")]
    return TokenTable.from_tokenizer_json(tokenizer.to_str(), vocab_size=1000, eos_ids=eos)


TABLES: dict[str, Callable[[], TokenTable]] = {
    "byte-level": lambda: table_of(byte_level(), padding=0),
    "byte-fallback": lambda: table_of(byte_fallback()),
    "padded": padded,
}
BACKENDS: dict[str, Sequence[Constraint]] = {
    "llguidance": (*TEXT_CONSTRAINTS, *JSON_CONSTRAINTS),
    "outlines": TEXT_CONSTRAINTS,
}


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest) -> TokenTable:
    return TABLES[request.param]()


def maker(table: TokenTable, backend: str) -> Callable[[Constraint], GrammarMatcher]:
    if backend == "outlines" and find_spec("outlines_core") is None:
        pytest.skip("the optional backend is not installed")
    compiler = GrammarCompiler(table, backend=backend)
    return lambda constraint: compiler.compile(constraint).matcher()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.long)])
def test_rejection_equals_replay_and_bits_equal_accepts(table: TokenTable, backend: str, rounds: int) -> None:
    check_matcher(maker(table, backend), table, BACKENDS[backend], seed=rounds, rounds=rounds)


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_exact_masks_too(table: TokenTable, rounds: int) -> None:
    constraints = [ExactGrammar(constraint) for constraint in (*TEXT_CONSTRAINTS[1:3], *JSON_CONSTRAINTS[:2])]
    check_matcher(maker(table, "llguidance"), table, constraints, seed=rounds, rounds=rounds)


def test_exact_masks_allow_every_token_that_continues_the_text(table: TokenTable) -> None:
    """Brute force where the text is forced: canonical masks leave one token, exact ones all prefixes of the text."""
    make = maker(table, "llguidance")
    text = b'{"name":"'
    for held in range(len(text)):
        exact, spelt = make(ExactGrammar(JSON_CONSTRAINTS[0])), b""
        while len(spelt) < held:
            token = next(i for i in legal_ids(exact, table) if len(table.tokens[i]) == 1)
            assert exact.accept([token])
            spelt += table.tokens[token]
        rest = text[held:]
        whole = {i for i, token in enumerate(table.tokens) if token and rest.startswith(token)}
        assert whole <= set(legal_ids(exact, table))
        assert exact.forced_tokens() == []
        assert exact.forced() == rest


def test_a_template_that_learnt_gives_the_same_matchers(table: TokenTable) -> None:
    """Used matchers become templates: what they were used for must not show."""
    compiler = GrammarCompiler(table)

    def make(constraint: Constraint) -> GrammarMatcher:
        compiled = compiler.compile(constraint)
        used = compiled.matcher()
        for _ in range(12):
            used.accept(legal_ids(used, table)[-1:])
        compiled.learn(used)
        return compiled.matcher()

    check_matcher(make, table, (*TEXT_CONSTRAINTS[:2], JSON_CONSTRAINTS[0]), rounds=3)
