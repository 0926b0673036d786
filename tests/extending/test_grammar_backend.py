"""A grammar backend from docs/extending: it keeps a matcher's promises, and a real session generates under its masks."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from inferd import protocol as p
from inferd_grammar import ChoiceGrammar, Constraint, GrammarCompiler, GrammarMatcher, TokenTable
from inferd_grammar.compiler import Trials
from inferd_grammar.conformance.matcher_checks import TEXT_CONSTRAINTS, check_matcher
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

COLOURS = p.ConstraintSpec("choice", options=["red", "redder", "reddest", "blue"])


def compiler(page: dict[str, Any], table: TokenTable) -> GrammarCompiler:
    return GrammarCompiler(table, backend=page["ChoiceBackend"](table))


def test_it_keeps_the_promises_of_a_matcher(page: dict[str, Any]) -> None:
    table = TokenTable.of_bytes()

    def make(constraint: Constraint) -> GrammarMatcher:
        return compiler(page, table).compile(constraint).matcher()

    check_matcher(make, table, [each for each in TEXT_CONSTRAINTS if isinstance(each, ChoiceGrammar)])


@pytest.mark.parametrize("drafted", [False, True])
def test_a_session_generates_under_its_masks(page: dict[str, Any], drafted: bool) -> None:
    model = null_model()
    caller = DirectSession(dataclasses.replace(model, grammars=compiler(page, model.grammars.table)))
    sampling = [p.Sampling(1.0, seed=seed) for seed in range(12)]
    texts = {
        caller.generate(caller.text("?"), sampling=each, constraint=COLOURS, system_speculation=drafted).text
        for each in sampling
    }
    with pytest.raises(p.ConstraintError, match="does not support RegexGrammar"):
        caller.generate(caller.text("?"), constraint=p.ConstraintSpec("regex", value="a"))
    caller.close()
    assert len(texts) > 1
    assert texts <= set(COLOURS.options)


def test_a_child_process_cannot_make_it(page: dict[str, Any]) -> None:
    table = TokenTable.of_bytes()
    with pytest.raises(ValueError, match="make_backend"):
        GrammarCompiler(table, backend=page["ChoiceBackend"](table), trials=cast(Trials, object()))
