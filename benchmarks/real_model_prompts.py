"""Prompts for a small instruct model: a copy, a nested record, a code edit, a loop of tool calls, and openings of prose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import speculation_prompts
from prompts import COPY_TEXT, Prompt
from speculation_prompts import FUNCTION, FUNCTIONS

SYSTEM = "You are a helpful assistant."
TOKENS = {"copy": 64, "json": 120, "code": 64, "agent": 40, "prose": 32}
"""Tokens of an answer at most: most answers end by themselves before."""
SECOND_TEXT = (
    "The museum opens at nine on weekdays and at ten on Sundays. Tickets cost eight euros. Children under twelve enter "
    "for free. The garden behind the main hall is open to everyone until sunset."
)
CODE = tuple(
    (first, FUNCTION.format(name=name, thing=thing, first=first, second=second))
    for name, thing, first, second in FUNCTIONS[:2]
)
"""A name, and a function that has it in several places."""
ORDERS = (
    "Ingrid Solberg of 12 Harbour Road, Varnes, ordered 3 oil lamps and 2 wool blankets on 4 May. She paid 118 euros.",
    "On 9 June Hugo Tanaka, 7 Mill Lane, Kestrel, bought 1 kettle and 6 blue cups. The total was 74 euros.",
)
CALLS = (
    "The file list is: setup.py, server.py, client.py, notes.txt. Open server.py.",
    "server.py has 120 lines. Line 40 is: timeout = 30. Open client.py.",
    "client.py has 80 lines. Line 12 is: timeout = 10. Open notes.txt.",
)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


_ITEM = _object(product=_text(20), quantity={"type": "integer", "minimum": 1, "maximum": 99})
ORDER = _object(
    customer=_object(name=_text(30), address=_object(street=_text(30), city=_text(20))),
    items={"type": "array", "items": _ITEM, "minItems": 2, "maxItems": 2},
    total={"type": "integer", "minimum": 0, "maximum": 9999},
)
CALL = _object(
    tool={"enum": ["open_file", "edit_file", "run_tests"]}, arguments=_object(path=_text(20), reason=_text(24))
)


def of_kind(kind: str) -> list[Prompt]:
    """The prompts of a kind: two, of loops one."""
    made: dict[str, Sequence[Prompt]] = {
        "copy": [_ask("copy", f"Repeat this text word for word:\n\n{text}") for text in (COPY_TEXT, SECOND_TEXT)],
        "json": [_ask("json", f"Extract the order as JSON.\n\n{text}", schema=json.dumps(ORDER)) for text in ORDERS],
        "code": [
            _ask("code", f"Write this function again, but replace the name {old} by length:\n\n{code}")
            for old, code in CODE
        ],
        "agent": [_ask("agent", CALLS[0], schema=json.dumps(CALL), more=CALLS[1:])],
        "prose": openings(2),
    }
    return list(made[kind])


def openings(count: int, temperature: float = 0.8, tokens: int = TOKENS["prose"]) -> list[Prompt]:
    """Openings of texts, each ``tokens`` long at most."""
    eight = speculation_prompts.prose(temperature)
    return [replace(eight[at % len(eight)], max_tokens=tokens) for at in range(count)]


def _ask(kind: str, user: str, **fields: Any) -> Prompt:
    return Prompt(kind, SYSTEM, user, max_tokens=TOKENS[kind], **fields)
