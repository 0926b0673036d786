"""The runner on wasmtime: one engine for each process, one store and instance for each run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wasmtime import Config, Engine, Store, WasiConfig, WasmtimeError, _ffi as ffi
from wasmtime.component import Component, Instance as ComponentInstance

from inferd_runtime.sandbox.wasm.engine_settings import MIB, WASM_STACK_BYTES
from inferd_runtime.sandbox.wasm.host_functions import NO_FINALIZER, HostCalls, host_callbacks, link
from inferd_runtime.sandbox.wasm.linear_memory import (
    MemoryAccess,
    data_addresses,
    read_map,
    writable_region,
    written_pages,
)
from inferd_runtime.sandbox.wasm.spares import Spares

WARM_UP_BYTES = 256 * MIB
ADDRESS_SPACE = 1 << 32


class GuestTrap(Exception):
    """The guest stopped without a result. The message is wasmtime's."""


class DoesNotFit(Exception):
    """The runner itself needs more memory than the guest may have."""


def new_engine() -> Engine:
    """Return an engine as the runner is compiled for; ``COMPILED_WITH`` names what of this is in the compiled file."""
    config = Config()
    config.wasm_component_model = True
    config.epoch_interruption = True
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), WASM_STACK_BYTES + MIB)  # has to be the larger one
    config.max_wasm_stack = WASM_STACK_BYTES
    return Engine(config)


def compile_component(source: Path, target: Path) -> None:
    """Compile a component to machine code for this processor."""
    target.write_bytes(Component.from_file(new_engine(), source).serialize())


@dataclass(frozen=True)
class Instance:
    """A pristine instance of the runner, which no program has used. ``memory``: its addresses, empty if they are not known."""

    store: Store
    handle: ComponentInstance
    address: int | None
    memory: range


class Guest:
    """One instance of the runner, for one run, in one thread."""

    def __init__(self, runner: LoadedRunner, instance: Instance, memory_limit: int) -> None:
        self._runner = runner
        self._instance = instance
        self._memory_limit = memory_limit

    def run(self, calls: HostCalls, bundle: str, arguments: str) -> tuple[bool, str]:
        """Run a program whose calls go to ``calls``: whether it went well, and the JSON of its result or error.

        Raises GuestTrap.
        """
        store = self._instance.store
        function = self._instance.handle.get_func(store, self._runner.export)
        assert function is not None
        store.set_epoch_deadline(1)
        with self._runner.answering(calls):
            try:
                result = function(store, bundle, arguments)
            except WasmtimeError as error:
                raise GuestTrap(str(error)) from None
        return result.tag == "ok", result.payload

    def memory(self) -> range:
        """Return the addresses of the instance's linear memory, which never shrinks; empty where they are not known."""
        initial = self._instance.memory
        if not initial:
            return initial
        return range(initial.start, initial.start + self._runner.access.size(initial, self._memory_limit))

    def close(self) -> None:
        """Give the instance's memory back."""
        self._runner.discard(self._instance)


class LoadedRunner:
    """The compiled runner in memory. Many threads may :meth:`start` guests."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._engine = new_engine()
        self._component = Component.deserialize_file(self._engine, str(path))
        self._calls = threading.local()
        self._callbacks = host_callbacks(self._current)
        self._linker = link(self._engine, self._component, self._callbacks)
        self._lock = threading.Lock()
        self._live: set[int] = data_addresses(read_map(), self._path)
        self._spares = Spares(self.instantiate)
        self.access = MemoryAccess()
        export = self._component.get_export_index("run")
        assert export is not None
        self.export = export

    def start(self, memory_limit: int) -> Guest:
        """Return a guest that may have ``memory_limit`` bytes. Raises DoesNotFit."""
        instance = self._spares.take()
        if memory_limit < len(instance.memory):
            self.discard(instance)
            raise DoesNotFit(f"it needs {len(instance.memory) / MIB:.0f} MiB")
        instance.store.set_limits(memory_size=memory_limit)
        return Guest(self, instance, min(memory_limit, ADDRESS_SPACE))

    def warm_up(self, calls: HostCalls, bundle: str, arguments: str, spares: int) -> None:
        """Run a program to see what every program needs, then keep ``spares`` instances that have it.

        Raises GuestTrap if the program does not end well.
        """
        guest = self.start(WARM_UP_BYTES)
        ok, text = guest.run(calls, bundle, arguments)
        if not ok:
            raise GuestTrap(text)
        written = written_pages(guest.memory())
        guest.close()

        def populated() -> Instance:
            instance = self.instantiate()
            inside = [stretch for stretch in written if stretch.stop <= len(instance.memory)]
            self.access.populate(instance.memory.start, inside)
            return instance

        self._spares.keep(spares, populated)

    def instantiate(self) -> Instance:
        """Return a new instance that no program has used."""
        store = Store(self._engine)
        store.set_wasi(WasiConfig())  # nothing of the host: no files, arguments, environment, network or streams
        store.set_epoch_deadline(1)
        ffi.wasmtime_store_epoch_deadline_callback(store.ptr(), self._callbacks["epoch"], None, NO_FINALIZER)
        with self._lock:
            handle = self._linker.instantiate(store, self._component)
            memory_map = read_map()
            address = min(data_addresses(memory_map, self._path) - self._live, default=None)
            if address is None:
                return Instance(store, handle, None, range(0))
            self._live.add(address)
        return Instance(store, handle, address, writable_region(memory_map, address))

    def discard(self, instance: Instance) -> None:
        """Close an instance's store. The next instance may get its address."""
        with self._lock:
            instance.store.close()
            self._live.discard(-1 if instance.address is None else instance.address)

    @contextmanager
    def answering(self, calls: HostCalls) -> Iterator[None]:
        """Send the calls of the guest that runs in this thread to ``calls`` while the body runs."""
        self._calls.current = calls
        try:
            yield
        finally:
            self._calls.current = None

    def tick(self) -> None:
        """Let every guest that computes call ``tick``."""
        self._engine.increment_epoch()

    def _current(self) -> HostCalls | None:
        """Return the calls of the guest that runs in this thread; None while an instance is made ahead of its use."""
        return getattr(self._calls, "current", None)
