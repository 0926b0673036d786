"""``context.save`` to ``context.import``: contexts that outlive their session, by name or as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferd import protocol as p
from inferd_runtime.engine.sequences.snapshots import Capture, Readied, capture, find_model, ready, restore
from inferd_runtime.kv.snapshot_format import Snapshot, TurnMark, decode, encode
from inferd_runtime.kv.snapshot_place import SnapshotPlace, Taken
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.session.state import Call, OpenContext, SessionState, guarded
from inferd_runtime.session.texts import answer_with
from inferd_runtime.session.transcript import Turn
from inferd_runtime.session.turn_marks import TurnMarks

SnapshotReply = Callable[[Any], Any]


def save(state: SessionState, call: Call) -> None:
    """Start copying a context, write it later; the context can be used at once. A running generation goes on."""
    request: p.SaveContext = call.request
    p.check_snapshot_name(request.name)
    _store(state)
    tenant, copied = state.tenant, _captured(state, request.context, request.length)

    def write(place: SnapshotPlace) -> p.SavedContext:
        return place.save(tenant, request.name, copied.finish(), overwrite=request.overwrite)

    _await(state, call, write, lambda saved: saved, nbytes=copied.nbytes)


def _captured(state: SessionState, handle: int, length: int) -> Capture:
    """Return a copy of a context, or of what a generation that runs on it would leave if ``length`` tokens were delivered."""
    running = state.running_on(state.context(handle).context)
    if running is None:
        return _capture(state.free_context(handle))
    copy = state.context(handle).fork(*running.keep(length), own_noise=False)
    try:
        return _capture(copy)
    finally:
        copy.context.release()


def _capture(entry: OpenContext) -> Capture:
    return capture(entry.model.engine, entry.model.info, entry.context, _marks(entry))


def open_saved(state: SessionState, call: Call) -> None:
    """Read a snapshot into a new context."""
    request: p.OpenSaved = call.request
    p.check_snapshot_name(request.name)
    tenant, models = state.tenant, _wanted(state, request.model)
    state.check_room()

    def load(place: SnapshotPlace) -> Readied:
        return ready(place.load(tenant, request.name))

    _await(state, call, load, lambda readied: _opened(state, readied, models))


def take(state: SessionState, call: Call) -> None:
    """Read a snapshot into a new context and delete it. It is put back if the context is not delivered."""
    request: p.TakeSaved = call.request
    p.check_snapshot_name(request.name)
    tenant, store, models = state.tenant, _store(state), _wanted(state, request.model)
    state.check_room()

    readied: list[Readied] = []

    def check(snapshot: Snapshot) -> None:
        find_model(snapshot, models)
        readied.append(ready(snapshot))

    def withdraw(place: SnapshotPlace) -> Taken:
        return place.take(tenant, request.name, check)

    def finish(taken: Taken, used: bool) -> None:
        store.submit(tenant, lambda place: place.finish_take(taken, used=used), lambda _: None)

    def reply(taken: Taken) -> p.Opened:
        used = False
        try:
            opened = _opened(state, readied[-1], models)
            used = True
            return opened
        finally:
            finish(taken, used)

    _await(state, call, withdraw, reply, unwanted=lambda taken: finish(taken, False))


def delete(state: SessionState, call: Call) -> None:
    """Delete a snapshot."""
    request: p.DeleteSaved = call.request
    p.check_snapshot_name(request.name)
    tenant = state.tenant
    _await(state, call, lambda place: place.delete(tenant, request.name), lambda _: p.Done())


def list_saved(state: SessionState, call: Call) -> None:
    """Answer with the tenant's snapshots."""
    tenant = state.tenant
    _await(state, call, lambda place: place.saved(tenant), p.SavedContexts)


def export(state: SessionState, call: Call) -> None:
    """Answer with a context as bytes, which are made beside the step loop."""
    request: p.ExportContext = call.request
    entry = state.free_context(request.context)
    driver = entry.model.engine.driver
    pages = -(-entry.context.computed // driver.page_size)
    p.check_export_size(pages * driver.page_bytes)
    captured = _capture(entry)

    def encoded() -> p.Exported:
        data = encode(captured.finish())
        p.check_export_size(len(data))
        return p.Exported(data)

    answer_with(state, call, captured.nbytes, encoded, lambda exported: exported)


def import_bytes(state: SessionState, call: Call) -> None:
    """Create a context from bytes, which are not trusted, and are read beside the step loop."""
    request: p.ImportContext = call.request
    p.check_import(request)
    models = _wanted(state, request.model)
    state.check_room()
    answer_with(
        state, call, len(request.data), lambda: ready(decode(request.data)),
        lambda readied: _opened(state, readied, models, trusted=False),
    )  # fmt: skip


def _store(state: SessionState) -> SnapshotStore:
    if state.snapshots is None:
        raise p.InvalidRequest("this engine keeps no snapshots: it was started without --snapshots")
    return state.snapshots


def _await(
    state: SessionState,
    call: Call,
    work: Callable[[SnapshotPlace], Any],
    reply: SnapshotReply,
    *,
    unwanted: Callable[[Any], None] = lambda _: None,
    nbytes: int = 0,
) -> None:
    """Answer with ``reply(result)`` when the place has done ``work``. After a cancel, ``unwanted`` is called with the result."""

    def done(result: Any) -> None:
        failed = isinstance(result, p.InferdError)
        # Otherwise it was cancelled, and the ticket may belong to another request by now.
        if state.waiting.get(call.ticket) is stop:
            del state.waiting[call.ticket]
            call.respond(result if failed else guarded(reply, result))
        elif not failed:
            unwanted(result)

    def stop() -> None:
        leave_out()
        call.respond(p.Cancelled("the operation was cancelled"))

    leave_out = _store(state).submit(state.tenant, work, done, nbytes=nbytes)
    state.waiting[call.ticket] = stop


def _wanted(state: SessionState, name: str) -> Sequence[p.ModelInfo]:
    """Return the model of that name, all for "". Raises NotFound, which names those that are served."""
    return [state.model(name).info] if name else [model.info for model in state.models.values()]


def _opened(state: SessionState, readied: Readied, models: Sequence[p.ModelInfo], *, trusted: bool = True) -> p.Opened:
    """Restore a snapshot on one of the models and give it a handle."""
    snapshot = readied.snapshot
    model = state.model(find_model(snapshot, models).name)
    restored = restore(model.engine, state.tenant, readied, trusted=trusted, meter=state.meter)
    turns = TurnMarks((mark.at, Turn(mark.empty, mark.answering, mark.asked)) for mark in snapshot.facts.turns)
    entry = OpenContext(model, restored.context, turns)
    new = state.open_context(entry)
    return p.Opened(
        new.context, new.length, new.pending, restored.restored, snapshot.facts.computed - restored.restored,
        [at for at, turn in entry.turns if turn.asked],
    )  # fmt: skip


def _marks(entry: OpenContext) -> Sequence[TurnMark]:
    return [TurnMark(at, turn.empty, turn.answering, turn.asked) for at, turn in entry.turns]


HANDLERS = {
    p.SaveContext: save,
    p.OpenSaved: open_saved,
    p.TakeSaved: take,
    p.DeleteSaved: delete,
    p.ListSaved: list_saved,
    p.ExportContext: export,
    p.ImportContext: import_bytes,
}
