"""Regular expressions over strangers' texts, in the processes of everybody: the time that one takes grows with its text alone.

Python's holds the interpreter's lock until it is done, so one that starts anew at each character stops the server for minutes.
"""

from __future__ import annotations

import importlib
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from inferd_runtime.interpreter import no_collections

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "inferd": "sdk/inferd",
    "inferd_runtime": "runtime/inferd_runtime",
    "inferd_grammar": "grammar/inferd_grammar",
}
ROOMS = (
    *(
        "inferd/chat",
        "inferd/protocol",
        "inferd_grammar/completion",
        "inferd_grammar/rewrites",
        "inferd_runtime/engine",
    ),
    *("inferd_runtime/sandbox/host", "inferd_runtime/session", "inferd_runtime/cluster/front"),
    *(f"inferd_runtime/server/{room}" for room in ("chat", "dialects", "egress", "gateway", "programs", "services")),
    *("inferd_runtime/carriable.py", "inferd_runtime/json_cost.py", "inferd_runtime/models/control_names.py"),
)
SIZE = 10_000
SECONDS = 0.05
"""A character at a time takes less than a thousandth of that for each; where each begins anew it is ten times as long."""
ANYWHERE = "search|finditer|findall|sub|split"
UNITS = " \n\t\"'\\<>[](){}:=,.#/-+0aAe_`*?!$"


def modules() -> Iterator[tuple[str, str]]:
    """The names and texts of modules with expressions."""
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = Path(package, path.relative_to(ROOT / folder))
            if place.as_posix().startswith(ROOMS) and "re.compile(" in (text := path.read_text()):
                yield ".".join(place.with_suffix("").parts), text


def literals(parsed: Any) -> Iterator[str]:
    """The texts that stand in an expression as they are."""
    run = ""
    for operation, value in parsed:
        if str(operation) == "LITERAL":
            run += chr(value)
            continue
        yield run
        run = ""
        for inner in value if isinstance(value, tuple | list) else (value,):
            for each in inner if isinstance(inner, list) else (inner,):
                if isinstance(each, _parser.SubPattern):
                    yield from literals(each)
    yield run


def texts(pattern: re.Pattern[Any]) -> Iterator[str]:
    """Texts that repeat what the expression may begin with, and do not end as it does."""
    written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    parsed = _parser.parse(written, pattern.flags & re.VERBOSE)
    known = list(dict.fromkeys(filter(None, literals(parsed))))
    for unit in dict.fromkeys([*UNITS, *known[:10], *(f"\\{mark}" for mark in "\"'/[")]):
        for begun in ("", *known[:3]):
            yield begun + unit * (SIZE // len(unit)) + "\0"


@pytest.mark.parametrize(("module", "source"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_no_expression_starts_anew_at_each_character_of_a_strangers_text(module: str, source: str) -> None:
    """256,000 empty lines as a grammar held the gateway for minutes, 20,000 brackets in a Lark text the engine for 4 s."""
    for name, pattern in vars(importlib.import_module(module)).items():
        if isinstance(pattern, re.Pattern) and f"{name} = re.compile(" in source:
            anywhere = re.search(rf"\b{name}\.({ANYWHERE})\(", source) is not None
            for text in texts(pattern):
                data: Any = text if isinstance(pattern.pattern, str) else text.encode()
                with no_collections():
                    started = time.thread_time()
                    deque(pattern.finditer(data) if anywhere else [pattern.match(data)], maxlen=0)
                    took = time.thread_time() - started
                assert took < SECONDS, f"{name} on {text[:12]!r} and so on"
