"""The adapters of one model: by tenant and name, with the leases that keep their weights on the device. No tensors here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound
from inferd_runtime.engine.uploads import Uploads
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize, LoraConfig

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AdapterDevice(Protocol):
    """The part of a driver that holds adapters."""

    def adapter_reader(self) -> Callable[[AdapterFiles], Any]:
        """Return what reads an adapter into this machine's memory, in any thread, and raises InvalidRequest that names what does
        not fit. Raises InvalidRequest where there can be no adapters.
        """

    def load_adapter(self, key: str, read: Any) -> AdapterSize:
        """Load what was read under ``key``, which is new."""

    def unload_adapter(self, key: str) -> None:
        """Unload the adapter of ``key``. No later batch may name it."""


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """The files of an adapter, read and checked: a ``digest`` of both, and what the device made of them."""

    digest: str
    weights: Any


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """The limits of one tenant. The operator's own adapters have none.

    ``bytes``: of one adapter's files, and of all uploads that are not loaded yet. ``count``: adapters at a time, including
    those that are dropped and still in use.
    """

    rank: int = 256
    bytes: int = 256 << 20
    count: int = 8


@dataclass(slots=True)
class LoadedAdapter:
    """An adapter on the device. ``tenant`` None: the operator's, visible to all. ``users``: the number of leases on it.

    ``key`` names tenant, name and content: KV that it computed is valid under that key only.
    """

    name: str
    tenant: str | None
    key: str
    size: AdapterSize
    users: int = 0
    dropped: bool = False


class AdapterLease:
    """A lease on the adapter of ``key`` ("": none). The device keeps the weights until it is released."""

    def __init__(self, adapters: AdapterSet, adapter: LoadedAdapter | None) -> None:
        self._adapters = adapters
        self._adapter = adapter
        self.key = "" if adapter is None else adapter.key
        if adapter is not None:
            adapter.users += 1

    def release(self) -> None:
        """Release the lease. A second call does nothing."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.users -= 1
            self._adapters.unload_unused(adapter)


class AdapterSet:
    """The adapters of one model. A tenant sees its own and the operator's only."""

    def __init__(self, device: AdapterDevice, limits: AdapterLimits | None = None) -> None:
        self.limits = limits or AdapterLimits()
        self.uploads = Uploads(self.limits.bytes)
        self._device = device
        self._named: dict[tuple[str | None, str], LoadedAdapter] = {}
        self._leaving: list[LoadedAdapter] = []

    def reader(self, tenant: str | None) -> Callable[[AdapterFiles], ReadAdapter]:
        """Return what reads a tenant's files, or the operator's (None), in any thread: that takes longer the larger they are.

        It raises InvalidRequest that names what is wrong, LimitExceeded above a limit.
        """
        read_weights = self._device.adapter_reader()

        def read(files: AdapterFiles) -> ReadAdapter:
            if tenant is not None:
                self._check_files(files)
            return ReadAdapter(files.digest(), read_weights(files))

        return read

    def load(self, tenant: str | None, name: str, read: ReadAdapter) -> LoadedAdapter:
        """Load an adapter for a tenant, or for all (None). It replaces one of that name if its content differs.

        Raises InvalidRequest that names what is wrong, LimitExceeded above a limit; then nothing has changed.
        """
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"adapter name {name!r}: letters, digits, '.', '_' and '-', at most 64")
        if tenant is not None:
            self._check_room(tenant, name)
        content = f"{name}@{read.digest}"
        key = content if tenant is None else f"{tenant}/{content}"
        present = self._present(key)
        if present is None:
            present = LoadedAdapter(name, tenant, key, self._device.load_adapter(key, read.weights))
        self._forget(self._named.get((tenant, name)), unless=present)
        present.dropped = False
        if present in self._leaving:
            self._leaving.remove(present)
        self._named[tenant, name] = present
        return present

    def list(self, tenant: str) -> Sequence[LoadedAdapter]:
        """Return the operator's adapters, then the tenant's own, each in order of loading."""
        mine = [adapter for (owner, _), adapter in self._named.items() if owner == tenant]
        return [adapter for (owner, _), adapter in self._named.items() if owner is None] + mine

    def lease(self, tenant: str, name: str) -> AdapterLease:
        """Return a lease on an adapter ("": on none). Raises NotFound that names those that the tenant sees."""
        return AdapterLease(self, self._find(tenant, name) if name else None)

    def drop(self, tenant: str, name: str) -> None:
        """Drop a tenant's adapter: its name is free at once, its weights are unloaded with the last lease on them.

        Raises NotFound, and InvalidRequest for one of the operator's.
        """
        adapter = self._find(tenant, name)
        if adapter.tenant is None:
            raise InvalidRequest(f"adapter {name!r} belongs to the server: only its operator can drop it")
        self._forget(adapter)

    def unload_unused(self, adapter: LoadedAdapter) -> None:
        """Unload the adapter if it is dropped and has no leases."""
        if adapter.dropped and not adapter.users:
            self._leaving.remove(adapter)
            self._device.unload_adapter(adapter.key)

    def _find(self, tenant: str, name: str) -> LoadedAdapter:
        adapter = self._named.get((None, name)) or self._named.get((tenant, name))
        if adapter is None:
            there = ", ".join(adapter.name for adapter in self.list(tenant)) or "none"
            raise NotFound(f"no adapter {name!r} is loaded; there is {there}")
        return adapter

    def _present(self, key: str) -> LoadedAdapter | None:
        return next((adapter for adapter in (*self._named.values(), *self._leaving) if adapter.key == key), None)

    def _forget(self, adapter: LoadedAdapter | None, unless: LoadedAdapter | None = None) -> None:
        if adapter is None or adapter is unless:
            return
        del self._named[adapter.tenant, adapter.name]
        adapter.dropped = True
        self._leaving.append(adapter)
        self.unload_unused(adapter)

    def _check_files(self, files: AdapterFiles) -> None:
        self.check_bytes(len(files.config) + len(files.weights))
        rank = LoraConfig.parse(files).max_rank
        if rank > self.limits.rank:
            text = f"the adapter has rank {rank}, {self.limits.rank} is allowed"
            raise LimitExceeded(text, limit="adapter_rank", value=self.limits.rank, raise_with="--max-adapter-rank")

    def _check_room(self, tenant: str, name: str) -> None:
        if (None, name) in self._named:
            raise InvalidRequest(f"adapter name {name!r} is taken by the server: choose another one")
        others = [owner for owner, other in self._named if owner == tenant and other != name]
        held = len(others) + sum(adapter.tenant == tenant for adapter in self._leaving)
        if held >= self.limits.count:
            text = f"adapters that are loaded or still in use: {held}; drop some"
            raise LimitExceeded(text, limit="adapters", value=self.limits.count, raise_with="--max-adapters")

    def check_bytes(self, size: int) -> None:
        """Check the size of an adapter's files. Raises LimitExceeded above the limit."""
        if size > self.limits.bytes:
            raise LimitExceeded(
                f"the adapter takes {size} bytes, {self.limits.bytes} are allowed",
                limit="adapter_bytes", value=self.limits.bytes, raise_with="--max-adapter-bytes",
            )  # fmt: skip
