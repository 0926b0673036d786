"""``Adapter``: LoRA adapters by name."""

from __future__ import annotations

from typing import NoReturn

from inferd import files
from inferd.protocol import ListAdapters, LoadAdapter, NotFound, UploadAdapter
from inferd.protocol.adapters import UPLOAD_CHUNK_BYTES
from inferlet.blocking import call
from inferlet.model import Model, model_and_name
from inferlet.refused import refuse


class Adapter:
    """A LoRA adapter of a model. Made by :meth:`create` and :meth:`open`."""

    def __init__(self, model: Model, name: str) -> None:
        self.model = model
        self.name = name

    @classmethod
    def create(cls, model: Model | str, name: str | None = None) -> Adapter:
        """Return an adapter without weights: :meth:`load` brings them, and it cannot be used before."""
        return cls(*model_and_name(model, name))

    @classmethod
    def open(cls, model: Model | str, name: str | None = None) -> Adapter | None:
        """Return an adapter that the runtime holds; None if it holds none of that name."""
        where, name = model_and_name(model, name)
        held = call(where.port, ListAdapters(where.name)).adapters
        return cls(where, name) if any(info.name == name for info in held) else None

    def load(self, path: str) -> None:
        """Load the folder ``path`` of the program's own files, as PEFT saves it. Raises FileNotFoundError."""
        config = files.read_text(f"{path}/adapter_config.json")
        weights = files.read_bytes(f"{path}/adapter_model.safetensors")
        upload = 0
        for first in range(0, len(weights), UPLOAD_CHUNK_BYTES):
            chunk = weights[first : first + UPLOAD_CHUNK_BYTES]
            upload = call(self.model.port, UploadAdapter(chunk, upload, self.model.name)).upload
        call(self.model.port, LoadAdapter(self.name, config, upload, self.model.name))

    def fork(self, new: str) -> NoReturn:
        """Refuse: adapters do not change here, so a copy would be the same one."""
        refuse("Adapter.fork", "adapters are not trained here, so use the adapter itself")

    def save(self, path: str) -> NoReturn:
        """Refuse: programs have no files to write."""
        refuse("Adapter.save", "programs write no files, and adapters are not trained here")


def adapter_name(adapter: Adapter | None) -> str:
    """Return the name as the protocol has it: "" is none. Raises TypeError for what is no adapter, NotFound for no name."""
    if adapter is None:
        return ""
    if not isinstance(adapter, Adapter):
        raise TypeError(f"an adapter is Adapter.open(model, name), not {adapter!r}")
    if not adapter.name:
        raise NotFound("an adapter without a name")
    return adapter.name
