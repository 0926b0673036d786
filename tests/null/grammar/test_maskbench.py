"""Real schemas: no invalid instance passes in either mode, and the valid ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler
from inferd_grammar.conformance.checking import CheckMode, Summary, TextReader, check_case, read_cases

CASES = Path(__file__).parents[4] / "shared" / "conformance" / "maskbench" / "cases.jsonl"
SAMPLE = 40  # of 582 cases, evenly spread


def run(cases: list[dict[str, Any]], compiler: GrammarCompiler, mode: CheckMode, reader: TextReader) -> dict[str, Any]:
    summary = Summary(mode)
    for case in cases:
        summary.add(check_case(case, compiler, mode, reader))
    return summary.figures()


def load(limit: int | None) -> list[dict[str, Any]]:
    if not CASES.exists():
        pytest.skip(f"no MaskBench sample at {CASES}")
    return read_cases(CASES, limit)


@pytest.mark.parametrize(("mode", "compiled"), [("strict", 38), ("best_effort", 40)])
def test_no_invalid_instance_passes(compiler: GrammarCompiler, mode: CheckMode, compiled: int) -> None:
    figures = run(load(SAMPLE), compiler, mode, TextReader(compiler.table))
    assert figures["compiled"] >= compiled  # a ratchet
    assert figures["invalid_refused"] == figures["invalid_total"] >= 55
    assert figures["valid_accepted"] == figures["valid_total"] >= 40


@pytest.mark.long
@pytest.mark.parametrize(("mode", "compiled"), [("strict", 561), ("best_effort", 582)])
def test_the_whole_sample(compiler: GrammarCompiler, mode: CheckMode, compiled: int) -> None:
    figures = run(load(None), compiler, mode, TextReader(compiler.table))
    assert figures["compiled"] >= compiled  # a ratchet
    assert figures["invalid_refused"] == figures["invalid_total"]
    assert figures["valid_accepted"] == figures["valid_total"]
