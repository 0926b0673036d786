"""The runner on wasmtime: one engine for each process, one store and instance for each run.

The host functions and the epoch callback are plugged in below wasmtime-py's own wrappers, by its ctypes bindings. The wrappers
keep the last exception of a host function in a process global, where with several threads it reaches the wrong program;
they cost 26-33 us a call where this costs 3-8; and they do not wrap the epoch callback at all. Here nothing is ever raised
into wasmtime: a callback that is to end the guest returns a wasmtime error, which unwinds that guest and no other.

No blocking call of WASI is left: ``sleep`` and ``poll`` come down to ``wasi:clocks/monotonic-clock``'s ``subscribe-*``, and these
end the guest here (its standard library goes through ``wait`` instead). So a guest is always either computing, where the
epoch callback ends it, or in a host function, which ends it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wasmtime import Config, Engine, Store, WasiConfig, WasmtimeError, _bindings, _ffi as ffi
from wasmtime.component import Component, Instance as ComponentInstance, Linker, LinkerInstance

from inferd_runtime.sandbox.engine_settings import MIB, WASM_STACK_BYTES
from inferd_runtime.sandbox.linear_memory import MemoryAccess, data_addresses, read_map, writable_region, written_pages
from inferd_runtime.sandbox.spares import Spares

WARM_UP_BYTES = 256 * MIB
ADDRESS_SPACE = 1 << 32
CLOCK = "wasi:clocks/monotonic-clock@"


class HostCalls(Protocol):
    """What a guest may ask of its host. Called in the thread that runs the guest; nothing here raises on purpose."""

    @property
    def ended(self) -> bool:
        """Whether the guest is to be stopped now."""
        ...

    def submit(self, op: str, arguments: bytes) -> int:
        """Start an operation; returns its ticket."""
        ...

    def wait(self, timeout_ms: int) -> bytes:
        """Wait for answers."""
        ...

    def cancel(self, ticket: int) -> None:
        """Drop an operation."""
        ...

    def log(self, target: str, text: str) -> None:
        """Text that the guest wrote."""
        ...

    def tick(self) -> None:
        """The guest has computed for a while: a chance to end it."""
        ...

    def blocked(self) -> None:
        """The guest made a blocking system call."""
        ...

    def crashed(self, error: Exception) -> None:
        """One of the calls above failed."""
        ...


class GuestTrap(Exception):
    """The guest stopped without a result. The message is wasmtime's."""


class DoesNotFit(Exception):
    """The runner itself needs more memory than the guest may have."""


def new_engine() -> Engine:
    """An engine as the runner is compiled for; ``COMPILED_WITH`` names what of this is in the machine code."""
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
        """The addresses of the instance's linear memory, which never shrinks; empty where it cannot be told."""
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
        self._callbacks = _callbacks(self._current)
        self._linker = _link(self._engine, self._component, self._callbacks)
        self._lock = threading.Lock()
        self._live: set[int] = data_addresses(read_map(), self._path)
        self._spares = Spares(self.instantiate)
        self.access = MemoryAccess()
        export = self._component.get_export_index("run")
        assert export is not None
        self.export = export

    def start(self, memory_limit: int) -> Guest:
        """A guest that may have ``memory_limit`` bytes. Raises DoesNotFit."""
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
        """A pristine instance."""
        store = Store(self._engine)
        store.set_wasi(WasiConfig())  # nothing of the host: no files, arguments, environment, network or streams
        store.set_epoch_deadline(1)
        ffi.wasmtime_store_epoch_deadline_callback(store.ptr(), self._callbacks["epoch"], None, _NO_FINALIZER)
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
        """Inside, the calls of the guest that runs in this thread go to ``calls``."""
        self._calls.current = calls
        try:
            yield
        finally:
            self._calls.current = None

    def tick(self) -> None:
        """Let every guest that computes call ``tick``."""
        self._engine.increment_epoch()

    def _current(self) -> HostCalls | None:
        """Whose guest runs in this thread; nobody's while an instance is made ahead of its use."""
        return getattr(self._calls, "current", None)


_NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_EPOCH_CALLBACK = _bindings._wasmtime_store_epoch_deadline_callback.argtypes[1]
Callback = Callable[..., Any]


def _kind(constant: Any) -> int:
    return int(getattr(constant, "value", constant))


_U32 = _kind(ffi.WASMTIME_COMPONENT_U32)
_U64 = _kind(ffi.WASMTIME_COMPONENT_U64)
_STRING = _kind(ffi.WASMTIME_COMPONENT_STRING)


def _text(value: Any) -> bytes:
    string = value.of.string
    return ctypes.string_at(string.data, string.size)


def _stop() -> int | None:
    """A wasmtime error: returned by a callback, it unwinds the guest that called."""
    return ctypes.cast(ffi.wasmtime_error_new(b"ended by the host"), ctypes.c_void_p).value


def _guarded(current: Callable[[], HostCalls | None], body: Callable[[HostCalls, Any, Any], None]) -> Any:
    """``body`` (calls, arguments, results) as a host function. It stops the guest when its run has ended."""

    def call(_data: Any, _context: Any, _type: Any, args: Any, _nargs: int, results: Any, _nresults: int) -> int | None:
        calls = current()
        if calls is None:
            return _stop()
        try:
            body(calls, args, results)
        except Exception as error:  # noqa: BLE001 - the boundary to native code: raising here would only print
            calls.crashed(error)
        return _stop() if calls.ended else 0

    return ffi.wasmtime_component_func_callback_t(call)


def _submit(calls: HostCalls, args: Any, results: Any) -> None:
    results[0].kind = _U32
    results[0].of.u32 = calls.submit(_text(args[0]).decode(), _text(args[1]))


def _wait(calls: HostCalls, args: Any, results: Any) -> None:
    answers = calls.wait(args[0].of.u32)
    results[0].kind = _STRING
    data = ctypes.cast(ctypes.c_char_p(answers), _BYTES)
    ffi.wasm_byte_vec_new(ctypes.byref(results[0].of.string), len(answers), data)


def _cancel(calls: HostCalls, args: Any, _results: Any) -> None:
    calls.cancel(args[0].of.u32)


def _log(calls: HostCalls, args: Any, _results: Any) -> None:
    calls.log(_text(args[0]).decode(), _text(args[1]).decode())


def _blocked(calls: HostCalls, _args: Any, _results: Any) -> None:
    calls.blocked()


def _clock(start: int) -> Any:
    """``now`` and ``resolution`` of the monotonic clock, which have to stand beside what is replaced there."""

    def now(_data: Any, _context: Any, _type: Any, _args: Any, _nargs: int, results: Any, _nresults: int) -> int:
        results[0].kind = _U64
        results[0].of.u64 = time.monotonic_ns() - start
        return 0

    return ffi.wasmtime_component_func_callback_t(now)


def _resolution(_calls: HostCalls, _args: Any, results: Any) -> None:
    results[0].kind = _U64
    results[0].of.u64 = 1000


def _epoch(current: Callable[[], HostCalls | None]) -> Any:
    """The epoch callback: another tick for the guest, or its end."""

    def tick(_context: Any, _data: Any, delta: Any, kind: Any) -> int | None:
        delta[0] = 1
        kind[0] = 0  # continue
        calls = current()
        if calls is None:
            return 0
        try:
            calls.tick()
        except Exception as error:  # noqa: BLE001 - as above
            calls.crashed(error)
        return _stop() if calls.ended else 0

    return _EPOCH_CALLBACK(tick)


def _callbacks(current: Callable[[], HostCalls | None]) -> dict[str, Any]:
    """What wasmtime calls. Kept alive by whoever holds the linker and stores: wasmtime holds bare pointers to them."""
    return {
        "submit": _guarded(current, _submit),
        "wait": _guarded(current, _wait),
        "cancel": _guarded(current, _cancel),
        "log": _guarded(current, _log),
        "epoch": _epoch(current),
        "now": _clock(time.monotonic_ns()),
        "resolution": _guarded(current, _resolution),
        "subscribe-instant": _guarded(current, _blocked),
        "subscribe-duration": _guarded(current, _blocked),
    }


def _link(engine: Engine, component: Component, callbacks: dict[str, Any]) -> Linker:
    linker = Linker(engine)
    linker.allow_shadowing = True
    linker.add_wasip2()
    clock = next(name for name in component.type.imports(engine) if name.startswith(CLOCK))
    with linker.root() as root:
        for name in ("submit", "wait", "cancel", "log"):
            _define(root, name, callbacks[name])
        with root.add_instance(clock) as instance:
            for name in ("now", "resolution", "subscribe-instant", "subscribe-duration"):
                _define(instance, name, callbacks[name])
    return linker


def _define(instance: LinkerInstance, name: str, callback: Any) -> None:
    encoded = name.encode()
    error = ffi.wasmtime_component_linker_instance_add_func(
        instance.ptr(), ctypes.create_string_buffer(encoded), len(encoded), callback, None, _NO_FINALIZER
    )
    if error:
        raise WasmtimeError._from_ptr(error)
