"""``/v1/models`` for Anthropic's clients: the same names as for OpenAI's, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from inferd.protocol import cut
from inferd_runtime.server.dialects.openai.model_list import ModelEntry
from inferd_runtime.server.dialects.reading import MAX_SHOWN, invalid

LISTED, MAX_LISTED = 20, 1000
ACTIVE = "active"
LIFECYCLES = (ACTIVE, "deprecated", "retired")
"""A model that is served is active: there are no others."""


@dataclass(frozen=True)
class ModelQuery:
    """Which page of the models a client asks for: ``limit`` of them, behind ``after`` or before ``before`` ("" for neither).

    ``lifecycles``: those of the models that are wanted; none given means all.
    """

    limit: int = LISTED
    after: str = ""
    before: str = ""
    lifecycles: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_LISTED:
            raise invalid("limit", f"limit: it must be 1 to {MAX_LISTED}")
        if self.after and self.before:
            raise invalid("before_id", "before_id: it excludes after_id")
        for each in self.lifecycles:
            if each not in LIFECYCLES:
                raise invalid("lifecycle", f"lifecycle: it must be one of {', '.join(LIFECYCLES)}")


def anthropic_model_json(entry: ModelEntry) -> dict[str, Any]:
    """Return one model. An answer may fill what a prompt leaves of the context, so that both maxima are its size."""
    created = datetime.fromtimestamp(int(entry.created), UTC)
    return {
        "type": "model",
        "id": entry.id,
        "display_name": entry.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": ACTIVE,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "max_input_tokens": entry.max_context or None,
        "max_tokens": entry.max_context or None,
        "capabilities": None,
    }


def anthropic_models_body(entries: Sequence[ModelEntry], query: ModelQuery) -> dict[str, Any]:
    """Return a page of the models. Raises InvalidRequest for a page beside a model that is not among them."""
    listed = [entry for entry in entries if not query.lifecycles or ACTIVE in query.lifecycles]
    if query.before:
        ending = listed[: _place(listed, query.before, "before_id")]
        page, has_more = ending[-query.limit :], len(ending) > query.limit
    else:
        rest = listed[_place(listed, query.after, "after_id") + 1 :] if query.after else listed
        page, has_more = rest[: query.limit], len(rest) > query.limit
    return {
        "data": [anthropic_model_json(entry) for entry in page],
        "has_more": has_more,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _place(entries: Sequence[ModelEntry], name: str, param: str) -> int:
    for place, entry in enumerate(entries):
        if entry.id == name:
            return place
    raise invalid(param, f"{param}: there is no model {cut(name, MAX_SHOWN)!r}")
