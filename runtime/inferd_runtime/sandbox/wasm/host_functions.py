"""The host's functions for a guest, and the epoch callback, as wasmtime calls them.

They are plugged in below wasmtime-py's own wrappers, by its ctypes bindings. The wrappers keep the last exception of a host
function in a process global, where with several threads it reaches the wrong program; they cost 26-33 us a call where this
costs 3-8; and they do not wrap the epoch callback at all. Here nothing is ever raised into wasmtime: a callback that is to end
the guest returns a wasmtime error, which unwinds that guest and no other.

No blocking call of WASI is left: ``sleep`` and ``poll`` come down to ``wasi:clocks/monotonic-clock``'s ``subscribe-*``, and these
end the guest here (its standard library goes through ``wait`` instead). So a guest is always either computing, where the
epoch callback ends it, or in a host function, which ends it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Protocol

from wasmtime import Engine, WasmtimeError, _bindings, _ffi as ffi
from wasmtime.component import Component, Linker, LinkerInstance

IMPORTS = ("submit", "wait", "ask", "cancel", "log", "file", "code", "keep")
"""Of the world `runner`."""
CLOCK = "wasi:clocks/monotonic-clock@"
NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_EPOCH_CALLBACK = _bindings._wasmtime_store_epoch_deadline_callback.argtypes[1]


def _kind(constant: Any) -> int:
    return int(getattr(constant, "value", constant))


_U32 = _kind(ffi.WASMTIME_COMPONENT_U32)
_U64 = _kind(ffi.WASMTIME_COMPONENT_U64)
_STRING = _kind(ffi.WASMTIME_COMPONENT_STRING)


class HostCalls(Protocol):
    """What a guest may ask of its host. Called in the thread that runs the guest; nothing here raises on purpose."""

    @property
    def ended(self) -> bool:
        """True if the guest is to be stopped now."""

    def submit(self, op: str, arguments: bytes) -> int:
        """Start an operation; returns its ticket."""

    def wait(self, timeout_ms: int) -> bytes:
        """Wait for answers."""

    def ask(self, op: str, arguments: bytes, timeout_ms: int) -> bytes:
        """Start an operation, and wait for answers."""

    def cancel(self, ticket: int) -> None:
        """Drop an operation."""

    def log(self, target: str, text: str) -> None:
        """Pass on text that the guest wrote."""

    def file(self, path: str) -> bytes:
        """Return a file of the program's packages."""

    def code(self, path: str) -> bytes:
        """Return what a module was compiled to."""

    def keep(self, code: bytes) -> None:
        """Keep what the guest's modules were compiled to."""

    def tick(self) -> None:
        """Note that the guest has computed for a while: a chance to end it."""

    def blocked(self) -> None:
        """Note that the guest made a blocking system call."""

    def crashed(self, error: Exception) -> None:
        """Note that one of the calls above failed."""


def _text(value: Any) -> bytes:
    string = value.of.string
    return ctypes.string_at(string.data, string.size)


def _return_text(value: Any, text: bytes) -> None:
    value.kind = _STRING
    data = ctypes.cast(ctypes.c_char_p(text), _BYTES)
    ffi.wasm_byte_vec_new(ctypes.byref(value.of.string), len(text), data)


def _stop() -> int | None:
    """Return a wasmtime error. Returned by a callback, it unwinds the guest that called."""
    return ctypes.cast(ffi.wasmtime_error_new(b"ended by the host"), ctypes.c_void_p).value


def _contained(calls: HostCalls, body: Callable[[], None]) -> int | None:
    """Run a callback's body, and return 0, or the error that stops the guest when its run has ended."""
    try:
        body()
    except Exception as error:  # noqa: BLE001 - the boundary to native code: raising here would only print
        calls.crashed(error)
    return _stop() if calls.ended else 0


def _guarded(current: Callable[[], HostCalls | None], body: Callable[[HostCalls, Any, Any], None]) -> Any:
    """Return ``body`` (calls, arguments, results) as a host function. It stops the guest when its run has ended."""

    def call(_data: Any, _context: Any, _type: Any, args: Any, _nargs: int, results: Any, _nresults: int) -> int | None:
        calls = current()
        if calls is None:
            return _stop()
        return _contained(calls, lambda: body(calls, args, results))

    return ffi.wasmtime_component_func_callback_t(call)


def _submit(calls: HostCalls, args: Any, results: Any) -> None:
    results[0].kind = _U32
    results[0].of.u32 = calls.submit(_text(args[0]).decode(), _text(args[1]))


def _wait(calls: HostCalls, args: Any, results: Any) -> None:
    _return_text(results[0], calls.wait(args[0].of.u32))


def _ask(calls: HostCalls, args: Any, results: Any) -> None:
    _return_text(results[0], calls.ask(_text(args[0]).decode(), _text(args[1]), args[2].of.u32))


def _cancel(calls: HostCalls, args: Any, _results: Any) -> None:
    calls.cancel(args[0].of.u32)


def _log(calls: HostCalls, args: Any, _results: Any) -> None:
    calls.log(_text(args[0]).decode(), _text(args[1]).decode())


def _file(calls: HostCalls, args: Any, results: Any) -> None:
    _return_text(results[0], calls.file(_text(args[0]).decode()))


def _code(calls: HostCalls, args: Any, results: Any) -> None:
    _return_text(results[0], calls.code(_text(args[0]).decode()))


def _keep(calls: HostCalls, args: Any, _results: Any) -> None:
    calls.keep(_text(args[0]))


def _blocked(calls: HostCalls, _args: Any, _results: Any) -> None:
    calls.blocked()


def _clock(start: int) -> Any:
    """Return ``now`` of the monotonic clock, which has to stand beside the functions that are replaced there."""

    def now(_data: Any, _context: Any, _type: Any, _args: Any, _nargs: int, results: Any, _nresults: int) -> int:
        results[0].kind = _U64
        results[0].of.u64 = time.monotonic_ns() - start
        return 0

    return ffi.wasmtime_component_func_callback_t(now)


def _resolution(_calls: HostCalls, _args: Any, results: Any) -> None:
    results[0].kind = _U64
    results[0].of.u64 = 1000


def _epoch(current: Callable[[], HostCalls | None]) -> Any:
    """Return the epoch callback, which gives the guest another tick or ends it."""

    def tick(_context: Any, _data: Any, delta: Any, kind: Any) -> int | None:
        delta[0] = 1
        kind[0] = 0  # continue
        calls = current()
        if calls is None:
            return 0
        return _contained(calls, calls.tick)

    return _EPOCH_CALLBACK(tick)


def host_callbacks(current: Callable[[], HostCalls | None]) -> dict[str, Any]:
    """Return what wasmtime calls. The owner of linker and stores keeps it alive: wasmtime holds bare pointers to it."""
    return {
        "submit": _guarded(current, _submit),
        "wait": _guarded(current, _wait),
        "ask": _guarded(current, _ask),
        "cancel": _guarded(current, _cancel),
        "log": _guarded(current, _log),
        "file": _guarded(current, _file),
        "code": _guarded(current, _code),
        "keep": _guarded(current, _keep),
        "epoch": _epoch(current),
        "now": _clock(time.monotonic_ns()),
        "resolution": _guarded(current, _resolution),
        "subscribe-instant": _guarded(current, _blocked),
        "subscribe-duration": _guarded(current, _blocked),
    }


def link(engine: Engine, component: Component, callbacks: dict[str, Any]) -> Linker:
    """Return a linker that gives guests the callbacks of :func:`host_callbacks`, and WASI for the rest."""
    linker = Linker(engine)
    linker.allow_shadowing = True
    linker.add_wasip2()
    clock = next(name for name in component.type.imports(engine) if name.startswith(CLOCK))
    with linker.root() as root:
        for name in IMPORTS:
            _define(root, name, callbacks[name])
        with root.add_instance(clock) as instance:
            for name in ("now", "resolution", "subscribe-instant", "subscribe-duration"):
                _define(instance, name, callbacks[name])
    return linker


def _define(instance: LinkerInstance, name: str, callback: Any) -> None:
    encoded = name.encode()
    error = ffi.wasmtime_component_linker_instance_add_func(
        instance.ptr(), ctypes.create_string_buffer(encoded), len(encoded), callback, None, NO_FINALIZER
    )
    if error:
        raise WasmtimeError._from_ptr(error)
