"""Dataclasses to plain values and back, for places that have no msgspec (the sandbox)."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

from inferd.protocol.adapters import AdapterInfo
from inferd.protocol.generation import Step
from inferd.protocol.grammar import CheckedKeyword
from inferd.protocol.models import ModelInfo
from inferd.protocol.passes import ProbeResult, RowResult, TokenLogprob
from inferd.protocol.snapshots import SavedContext
from inferd.protocol.speculation import SourceCount


def to_plain(value: Any) -> Any:
    """A dataclass as dicts and lists; everything else unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


LISTS_OF: dict[str, dict[str, type[Any]]] = {
    "Models": {"models": ModelInfo},
    "Adapters": {"adapters": AdapterInfo},
    "Steps": {"steps": Step, "checked": CheckedKeyword},
    "Step": {"sources": SourceCount, "logprobs": TokenLogprob},
    "CompiledGrammar": {"checked": CheckedKeyword},
    "ForwardResult": {"rows": RowResult},
    "RowResult": {"probes": ProbeResult},
    "TokenLogprobs": {"tokens": TokenLogprob},
    "SavedContexts": {"saved": SavedContext},
}
"""Of each class, the fields that are lists of other ones."""
NO_LISTS: dict[str, type[Any]] = {}
BYTES_OF = {"Exported": "data"}


def reply_from_plain(cls: type[Any], data: dict[str, Any]) -> Any:
    """Build a reply dataclass from plain values. Unknown keys of a newer runtime are left out."""
    known = cls.__dataclass_fields__
    values = {key: value for key, value in data.items() if key in known}
    for key, item in LISTS_OF.get(cls.__name__, NO_LISTS).items():
        if values.get(key):
            values[key] = [reply_from_plain(item, entry) for entry in values[key]]
    packed = BYTES_OF.get(cls.__name__, "")
    if isinstance(values.get(packed), str):
        values[packed] = base64.b64decode(values[packed])  # as JSON carries bytes
    return cls(**values)
