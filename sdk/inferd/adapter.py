"""LoRA adapters: small changes to a model, loaded while it is served and chosen per generation."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from inferd.model import Model
from inferd.protocol import AdapterInfo, DropAdapter, InvalidRequest, ListAdapters, LoadAdapter, UploadAdapter
from inferd.protocol.adapters import UPLOAD_CHUNK_BYTES
from inferd.transport import Transport, current_transport


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that the runtime holds; pass it (or its name) as ``adapter=`` to ``Context.generate``.

    ``rank`` is its largest, ``bytes`` what it takes on the device. ``shared``: it is the server's, and every tenant may use
    it; others belong to the tenant that loaded them, and no other one can see them.
    """

    info: AdapterInfo
    transport: Transport

    @classmethod
    async def load(
        cls, folder: str | PathLike[str], *, name: str | None = None, model: str | Model | None = None
    ) -> Adapter:
        """Load a folder that PEFT saved: ``adapter_config.json`` and ``adapter_model.safetensors``.

        ``name`` is the folder's own where none is given. A name that you have in use gets the new content; what runs with
        the old one goes on with it. Raises what :meth:`load_bytes` raises, and OSError for a file that cannot be read.
        """
        path = Path(folder)
        config, weights = path / "adapter_config.json", path / "adapter_model.safetensors"
        return await cls.load_bytes(
            config.read_text(encoding="utf-8"),
            weights.read_bytes(),
            name=path.name if name is None else name,
            model=model,
        )

    @classmethod
    async def load_bytes(cls, config: str, weights: bytes, *, name: str, model: str | Model | None = None) -> Adapter:
        """Load an adapter from the contents of its two files, as a program does, which has no files.

        Raises InvalidRequest, which names the option, tensor or module that is wrong or not supported, and LimitExceeded
        when it is too large or too many are loaded.
        """
        if not isinstance(config, str) or not isinstance(weights, bytes) or not weights:
            raise InvalidRequest("config must be the text of adapter_config.json, weights bytes that are not empty")
        transport, served = current_transport(), _model_name(model)
        upload = 0
        for first in range(0, len(weights), UPLOAD_CHUNK_BYTES):
            chunk = weights[first : first + UPLOAD_CHUNK_BYTES]
            upload = (await transport.call(UploadAdapter(chunk, upload, served))).upload
        return cls(await transport.call(LoadAdapter(name, config, upload, served)), transport)

    @classmethod
    async def list(cls, model: str | Model | None = None) -> builtins.list[Adapter]:
        """Return the adapters that can be used with a model: the server's, then your own."""
        transport = current_transport()
        reply = await transport.call(ListAdapters(_model_name(model)))
        return [cls(info, transport) for info in reply.adapters]

    async def drop(self) -> None:
        """Take the adapter away. The name is gone at once; what runs with it goes on to its end.

        Raises NotFound when it is not there any more, and InvalidRequest for one of the server's.
        """
        await self.transport.call(DropAdapter(self.name, self.info.model))

    @property
    def name(self) -> str:
        """Its name, as ``Context.generate(adapter=...)`` takes it."""
        return self.info.name

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.info.model

    @property
    def rank(self) -> int:
        """Its largest rank."""
        return self.info.rank

    @property
    def bytes(self) -> int:
        """Bytes that it takes on the device."""
        return self.info.bytes

    @property
    def shared(self) -> bool:
        """True if it is the server's."""
        return self.info.shared


def adapter_name(adapter: str | Adapter | None) -> str:
    """Return the adapter's name as the protocol has it, "" for no adapter. Raises InvalidRequest for anything else."""
    if adapter is None:
        return ""
    if isinstance(adapter, Adapter):
        return adapter.name
    if not isinstance(adapter, str) or not adapter:
        raise InvalidRequest(f"adapter must be an Adapter, a name or None, not {adapter!r}")
    return adapter


def _model_name(model: str | Model | None) -> str:
    return model.name if isinstance(model, Model) else model or ""
