"""What a guest's end means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferd_runtime.sandbox.host.run import explain_trap, read_error
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.sandbox.wasm.engine_settings import MIB

LIMITS = Limits(memory_mb=100)
TRAP = "error while executing at wasm backtrace:\n    0: 0x1 - libc.so!abort\n\nCaused by:\n    {}\n"


@pytest.mark.parametrize(
    ("cause", "memory", "code", "words"),
    [
        ("wasm trap: call stack exhausted", 50, "program", "too deeply"),
        ("Exited with i32 exit status 1", 50, "program", "os._exit"),
        ("wasm trap: wasm `unreachable` instruction executed", 50, "program", "abnormally"),
        ("wasm trap: wasm `unreachable` instruction executed", 99, "limit", "100 MiB"),
        ("wasm trap: uninitialized element", 66, "program", "66 of 100 MiB in use: Python does so"),
    ],
)
def test_a_trap_is_explained(cause: str, memory: int, code: str, words: str) -> None:
    error = explain_trap(TRAP.format(cause), memory * MIB, LIMITS)
    assert error.code == code
    assert words in error.message


def error_of(info: Any) -> Any:
    return read_error(json.dumps(info), LIMITS)


def test_the_memory_limit_gets_its_value() -> None:
    detail = {"limit": "memory_mb", "value": None, "raise_with": "", "traceback": "lines"}
    error = error_of({"code": "limit", "message": "out of memory", "detail": detail})
    assert error.detail["value"] == 100
    assert error.detail["traceback"] == "lines"
    assert "memory_mb" in error.detail["raise_with"]


def test_other_errors_are_passed_on() -> None:
    error = error_of({"code": "limit", "message": "too long", "detail": {"limit": "context"}})
    assert (error.code, error.message, error.detail) == ("limit", "too long", {"limit": "context"})


@pytest.mark.parametrize("text", ["", "[]", '{"code": 1}', "nonsense"])
def test_an_error_that_is_none_is_the_programs_fault(text: str) -> None:
    error = read_error(text, LIMITS)
    assert error.code == "program"
    assert "cannot be read" in error.message
