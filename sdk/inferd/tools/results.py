"""The texts that a model gets: what tools return, and what went wrong."""

from __future__ import annotations

import json
from typing import Any

from inferd.program.json_values import is_carried, to_json_value
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded

MAX_ERROR = 2000
"""Characters of an error that the model is told."""


def result_text(name: str, value: Any, most: int) -> str:
    """Return what a tool returned as text: a text as it is, any other value as JSON.

    Raises ProgramError for what JSON cannot hold, InvalidRequest for text that is no Unicode, and LimitExceeded above ``most``
    characters: a result takes the place of everything else that the model could read.
    """
    text = value if isinstance(value, str) else json.dumps(to_json_value(value, "result"), ensure_ascii=False)
    if len(text) > most:
        raise LimitExceeded(
            f"the result of {name} has {len(text)} characters; {most} are allowed",
            limit="tool_result", value=most, raise_with="run_tools(max_result=...)",
        )  # fmt: skip
    if not is_carried(text):
        raise InvalidRequest(f"the result of {name} is no text: half a surrogate pair is in it")
    return str(text)


def error_text(error: BaseException) -> str:
    """Return what the model is told of an error, whatever it is made of."""
    try:
        said = error.message if isinstance(error, InferdError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error of a tool may fail at telling what it is
        said = type(error).__name__
    text = f"Error: {said}"
    return (text if len(text) <= MAX_ERROR else text[:MAX_ERROR] + "...").encode("utf-8", "replace").decode()
