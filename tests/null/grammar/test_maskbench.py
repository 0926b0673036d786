"""Real schemas: in strict mode no invalid instance passes, and the valid ones do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inferd_grammar import Compiled, GrammarCompiler, GrammarError, JsonSchema

CASES = Path(__file__).parents[4] / "shared" / "conformance" / "maskbench" / "cases.jsonl"
EVERY = 14  # of 582 cases: about 40


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    if not CASES.exists():
        pytest.skip(f"no MaskBench sample at {CASES}")
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()[::EVERY]]


def test_no_invalid_instance_passes(
    cases: list[dict[str, Any]], compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    compiled = wrong = 0
    for case in cases:
        try:
            grammar = compiler.compile(JsonSchema(case["schema"]))
        except GrammarError:
            continue
        compiled += 1
        for test in case["tests"]:
            passed = passes(grammar, tokenizer, test["data"])
            assert test["valid"] or not passed, f"{case['name']} accepts {test['data']}"
            wrong += test["valid"] and not passed
    assert len(cases) >= 40
    assert compiled >= 27  # a ratchet for this sample; the rest is refused up front
    assert wrong == 0


def passes(grammar: Compiled, tokenizer: Tokenizer, data: Any) -> bool:
    """Whether the canonical tokens of the compact text are accepted and the text may end."""
    ids = encode(tokenizer, json.dumps(data, separators=(",", ":"), ensure_ascii=False))
    matcher = grammar.matcher()
    return matcher.accept(ids) == len(ids) and matcher.may_end()


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Without the space that SentencePiece puts in front: constrained text starts in the middle of a line."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if tokenizer.normalizer is None:
        return ids
    marked: list[int] = tokenizer.encode(f"\n{text}", add_special_tokens=False).ids
    newline = tokenizer.token_to_id("<0x0A>")
    assert newline is not None
    return marked[marked.index(newline) + 1 :]
