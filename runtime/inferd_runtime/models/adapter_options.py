"""The operator's adapters, each as ``NAME=FOLDER[,model=MODEL]``. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd.protocol import InvalidRequest
from inferd_runtime.models.option_lists import check_once, read_entries, read_entry

MODEL = ",model="


@dataclass(frozen=True)
class AdapterOptions:
    """An adapter to serve to every tenant, out of a folder that PEFT saved. ``model`` "" is the default model."""

    name: str
    folder: Path
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> AdapterOptions:
        """Read ``NAME=FOLDER[,model=MODEL]``. Raises InvalidRequest."""
        name, _, rest = text.partition("=")
        folder, given, model = rest.rpartition(MODEL) if MODEL in rest else (rest, "", "")
        if not name or not folder or (given and not model):
            raise InvalidRequest(f"adapter {text!r}: expected NAME=FOLDER or NAME=FOLDER{MODEL}MODEL")
        return cls(name, Path(folder).expanduser(), model)


def read_adapters(value: Any) -> tuple[AdapterOptions, ...]:
    """Return the adapters of a setting: one text with ``;`` between adapters, or a list of texts and tables.

    Raises InvalidRequest that names what is wrong, and the adapter that is there twice.
    """
    adapters = read_entries(value, "an adapter", _read_adapter)
    check_once("adapter", [(adapter.name, adapter.model) for adapter in adapters])
    return adapters


def _read_adapter(entry: Any) -> AdapterOptions:
    expected = "NAME=FOLDER, or a table with name, folder and maybe model"
    if isinstance(entry, Mapping) and not {"name", "folder"} <= entry.keys() <= {"name", "folder", "model"}:
        raise InvalidRequest(f"expected {expected}, got {entry!r}")
    return read_entry(entry, AdapterOptions, AdapterOptions.parse, _of_table, expected)


def _of_table(entry: Mapping[str, Any]) -> AdapterOptions:
    return AdapterOptions(str(entry["name"]), Path(str(entry["folder"])).expanduser(), str(entry.get("model", "")))
