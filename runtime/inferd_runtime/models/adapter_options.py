"""The operator's adapters: ``NAME=FOLDER[,model=MODEL]``. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd.protocol import InvalidRequest

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

    def __str__(self) -> str:
        """The text that :meth:`parse` reads."""
        return f"{self.name}={self.folder}" + (MODEL + self.model if self.model else "")


def read_adapters(value: Any) -> tuple[AdapterOptions, ...]:
    """Adapters from a setting: one text with ``;`` between adapters, or a list of texts and tables.

    Raises InvalidRequest that names what is wrong, and the adapter that is there twice.
    """
    entries = [entry for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, Sequence):
        raise InvalidRequest(f"expected an adapter or a list of adapters, got {value!r}")
    adapters = tuple(_read_adapter(entry) for entry in entries)
    for (name, _), count in Counter((adapter.name, adapter.model) for adapter in adapters).items():
        if count > 1:
            raise InvalidRequest(f"adapter {name!r} is given twice")
    return adapters


def _read_adapter(entry: Any) -> AdapterOptions:
    if isinstance(entry, AdapterOptions):
        return entry
    if isinstance(entry, str):
        return AdapterOptions.parse(entry.strip())
    if isinstance(entry, Mapping) and {"name", "folder"} <= entry.keys() <= {"name", "folder", "model"}:
        return AdapterOptions(str(entry["name"]), Path(str(entry["folder"])).expanduser(), str(entry.get("model", "")))
    raise InvalidRequest(f"expected NAME=FOLDER, or a table with name, folder and maybe model, got {entry!r}")
