"""`python -m inferd_grammar check`: one JSON line at the end, every instance counted, a hanging case stopped."""

from __future__ import annotations

import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inferd_grammar import TokenTable
from inferd_grammar.__main__ import main
from inferd_grammar.conformance import checking
from inferd_grammar.conformance.checking import CaseResult, Checker, Summary, read_cases

KEYS = [
    *("mode", "cases", "compiled", "refused", "timeouts"),
    *("valid_accepted", "valid_total", "invalid_refused", "invalid_total", "compile_p50_ms", "compile_p95_ms"),
    *("mask_p50_us", "mask_p90_us", "mask_p99_us", "mask_max_us"),
]
CASES = [
    {
        "name": "plain",
        "schema": {"type": "integer"},
        "tests": [{"valid": True, "data": 12}, {"valid": False, "data": ""}],
    },
    {
        "name": "order",
        "schema": {"properties": {"a": {"type": "null"}, "b": {}}, "required": ["a"], "additionalProperties": False},
        "tests": [{"valid": True, "data": {"b": [1], "a": None}}, {"valid": False, "data": {"b": 1}}],
    },
    {
        "name": "hard",
        "schema": {"type": "array", "uniqueItems": True},
        "tests": [{"valid": True, "data": [1, 2]}, {"valid": False, "data": [1, 1]}],
    },
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(f"{json.dumps(case)}\n" for case in CASES), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("mode", "counts"), [("strict", (3, 0, 3, 3, 3, 3)), ("best_effort", (3, 0, 3, 3, 3, 3))], ids=["strict", "best"]
)
def test_the_last_line(
    file: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str], mode: str, counts: tuple[int, ...]
) -> None:
    folder = file.parent
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    assert main(["check", str(file), "--mode", mode, "--tokenizer", str(folder)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures) == KEYS
    wanted = ("compiled", "refused", "valid_accepted", "valid_total", "invalid_refused", "invalid_total")
    assert tuple(figures[key] for key in wanted) == counts
    assert (figures["mode"], figures["cases"], figures["timeouts"]) == (mode, 3, 0)
    assert 0 < figures["mask_p50_us"] <= figures["mask_max_us"]


def hang(pipe: Connection, *_: Any) -> None:
    """Stands in for the child: answers one case, then nothing."""
    pipe.send(None)
    pipe.recv()
    time.sleep(60)


def test_a_case_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_serve", hang)
    fork = multiprocessing.get_context("fork")  # a function of this file cannot be found by a fresh interpreter
    monkeypatch.setattr(checking.multiprocessing, "get_context", lambda _: fork)
    with Checker(TokenTable.of_bytes(), "strict", "auto", 0.05) as checker:
        first = checker._process
        result = checker.run(CASES[0])
        assert result.outcome == "timeout"
        assert not first.is_alive()
        assert checker._process.is_alive()
    assert not checker._process.is_alive()


def test_only_compiled_cases_count() -> None:
    summary = Summary("strict")
    summary.add(CaseResult("timeout", valid_total=3))
    summary.add(CaseResult("refused", valid_total=3))
    assert summary.figures()["valid_total"] == 0
    assert summary.figures()["mask_p50_us"] is None


def test_a_limit_is_spread_over_the_file(file: Path) -> None:
    assert [case["name"] for case in read_cases(file, 2)] == ["plain", "order"]
    assert len(read_cases(file, 9)) == 3


def test_unreadable_input_is_an_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file.parent / "absent")]) == 2
    assert main(["check", str(file), "--tokenizer", str(file.parent)]) == 2
    assert "tokenizer.json" in capsys.readouterr().err
    assert main(["check", str(file), "--backend", "xyz"]) == 2
    assert "unknown backend 'xyz'" in capsys.readouterr().err
