"""Real schemas: no invalid instance passes in either mode, and the valid ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler
from inferd_grammar.conformance.checking import CheckMode, Summary, TextReader, check_case, read_cases

from .conftest import byte_fallback, byte_level, unigram

CASES = Path(__file__).parents[4] / "shared" / "conformance" / "maskbench" / "cases.jsonl"
SAMPLE = 60  # of 582 cases, evenly spread; each tokenizer has a third of them


def run(cases: list[dict[str, Any]], compiler: GrammarCompiler, mode: CheckMode, reader: TextReader) -> dict[str, Any]:
    summary = Summary(mode)
    for case in cases:
        summary.add(check_case(case, compiler, mode, reader, timed=False))
    return summary.figures()


def load(limit: int | None) -> list[dict[str, Any]]:
    if not CASES.exists():
        pytest.skip(f"no MaskBench sample at {CASES}")
    return read_cases(CASES, limit)


@pytest.mark.parametrize(
    ("tokenizer", "third", "compiled", "invalid", "valid"),
    [(byte_level, 0, (20, 20), 38, 26), (byte_fallback, 1, (20, 20), 38, 19), (unigram, 2, (18, 20), 27, 22)],
    indirect=["tokenizer"],
)
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_no_invalid_instance_passes(
    compiler: GrammarCompiler, mode: CheckMode, third: int, compiled: tuple[int, int], invalid: int, valid: int
) -> None:
    figures = run(load(SAMPLE)[third::3], compiler, mode, TextReader(compiler.table))
    assert figures["compiled"] >= compiled[mode == "best_effort"]  # a ratchet
    assert figures["invalid_refused"] == figures["invalid_total"] >= invalid
    assert figures["valid_accepted"] == figures["valid_total"] >= valid


@pytest.mark.long
@pytest.mark.parametrize(("mode", "compiled"), [("strict", 561), ("best_effort", 582)])
def test_the_whole_sample(compiler: GrammarCompiler, mode: CheckMode, compiled: int) -> None:
    figures = run(load(None), compiler, mode, TextReader(compiler.table))
    assert figures["compiled"] >= compiled  # a ratchet
    assert figures["invalid_refused"] == figures["invalid_total"]
    assert figures["valid_accepted"] == figures["valid_total"]
