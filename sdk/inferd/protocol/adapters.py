"""The part of the protocol that is about LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.protocol.operations import Done, operation

UPLOAD_CHUNK_BYTES = 1 << 19
"""Bytes that the SDK puts into one ``adapter.upload``."""


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that is loaded: its model's name, its largest rank, and the bytes that it takes on the device.

    ``shared``: it belongs to the server, and every tenant may use it.
    """

    name: str
    model: str
    rank: int
    bytes: int
    shared: bool


@dataclass(frozen=True)
class Adapters:
    """Adapters, the server's first, each group in order of loading."""

    adapters: list[AdapterInfo]


@dataclass(frozen=True)
class Upload:
    """``received`` bytes of a file have arrived under the number ``upload``."""

    upload: int
    received: int


@operation("adapter.upload", Upload)
@dataclass(frozen=True)
class UploadAdapter:
    """The next bytes of an adapter's weights. ``upload`` 0 begins a file, whose number is the answer."""

    data: bytes
    upload: int = 0
    model: str = ""


@operation("adapter.load", AdapterInfo)
@dataclass(frozen=True)
class LoadAdapter:
    """Load the uploaded weights (the bytes of ``adapter_model.safetensors``) with ``config``, the text of
    ``adapter_config.json``. The upload is used up, well or not. A name in use by the tenant gets the new content.
    """

    name: str
    config: str
    upload: int
    model: str = ""


@operation("adapter.list", Adapters)
@dataclass(frozen=True)
class ListAdapters:
    """The server's adapters and the tenant's own ("" is the default model)."""

    model: str = ""


@operation("adapter.drop", Done)
@dataclass(frozen=True)
class DropAdapter:
    """Take an adapter of the tenant's away. What runs with it goes on to its end."""

    name: str
    model: str = ""
