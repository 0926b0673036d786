"""``/v1/models``: models, adapters, and programs that serve chat, as OpenAI lists models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

OWNER = "inferd"


@dataclass(frozen=True)
class ModelEntry:
    """A name that clients may give as their ``model``. ``created`` is in seconds since the epoch, ``owner`` a tenant or OWNER.

    ``root``: the model that an adapter belongs to, "" for any other; ``max_context``: the most tokens it reads and writes, 0
    where that is not known.
    """

    id: str
    created: float
    owner: str = OWNER
    root: str = ""
    max_context: int = 0


def model_json(entry: ModelEntry) -> dict[str, Any]:
    """Return one model; ``root``, ``parent`` and ``max_model_len`` as vLLM adds them."""
    value = {"id": entry.id, "object": "model", "created": int(entry.created), "owned_by": entry.owner}
    return value | {
        "root": entry.root or entry.id,
        "parent": entry.root or None,
        "max_model_len": entry.max_context or None,
    }


def models_body(entries: Iterable[ModelEntry]) -> dict[str, Any]:
    """Return the list of all models."""
    return {"object": "list", "data": [model_json(entry) for entry in entries]}
