"""Snapshots of contexts: capture one from the engine, and restore one into it.

:func:`export_kv` and :func:`import_kv` move a context between engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from msgspec.structs import astuple, replace

from inferd.protocol import InvalidRequest, ModelInfo, SnapshotDamaged, SnapshotForeign
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.parking import start_reading
from inferd_runtime.engine.sequences.positions import Positions
from inferd_runtime.engine.sequences.prompt_meter import PromptMeter
from inferd_runtime.engine.sequences.visibility import bits_of, keep_bits
from inferd_runtime.kv import snapshot_format
from inferd_runtime.kv.snapshot_format import Facts, PlaceMark, Snapshot, TurnMark
from inferd_runtime.models.batch import PageData

START = (TurnMark(0, True, False, False),)


class Capture(NamedTuple):
    """A copy of a context that is being made, of ``nbytes``. ``finish`` waits for it, in any thread."""

    nbytes: int
    finish: Callable[[], Snapshot]


class Readied(NamedTuple):
    """A snapshot, the positions and visibility of its tokens, and the ``lowest`` and ``highest`` of these positions."""

    snapshot: Snapshot
    positions: Positions
    lowest: int
    highest: int


class Restored(NamedTuple):
    """A restored context, and how many of its tokens came with their K and V."""

    context: CachedSequence
    restored: int


def export_kv(engine: Engine, model: ModelInfo, context: CachedSequence, turns: Sequence[TurnMark] = START) -> bytes:
    """Return a context as bytes, in the format of a snapshot's file."""
    return snapshot_format.encode(capture(engine, model, context, turns).finish())


def import_kv(engine: Engine, model: ModelInfo, tenant: str, data: bytes) -> Restored:
    """Return a context restored from bytes of an unknown origin.

    They are checked before the device sees them. That the KV is what the model computes cannot be checked, so it is never found
    by prefix, and serves this context and its forks alone. Raises SnapshotDamaged, SnapshotForeign, and what :func:`restore`
    raises.
    """
    snapshot = snapshot_format.decode(data)
    find_model(snapshot, [model])
    return restore(engine, tenant, ready(snapshot), trusted=False)


def capture(engine: Engine, model: ModelInfo, context: CachedSequence, turns: Sequence[TurnMark]) -> Capture:
    """Start copying a context as a snapshot. The context can be used, and released, at once.

    What its tokens see is written out by ``finish``: that takes long where each has a row of its own.
    """
    facts = Facts(
        model=model.name,
        fingerprint=model.fingerprint,
        kv_layout=engine.driver.kv_layout,
        page_size=engine.pool.page_size,
        computed=context.computed,
        lineage=context.lineage,
        forks=context.forks,
        turns=tuple(turns),
        adapter=context.adapter,
        salt=context.salt,
        irregular_from=context.irregular_from,
    )
    tokens, pages = list(context.tokens), _start_reading(engine.driver, context)
    positions = context.positions.copy(len(tokens))
    size = -(-context.computed // engine.driver.page_size) * engine.driver.page_bytes

    def finish() -> Snapshot:
        return Snapshot(replace(facts, places=tuple(_place_marks(positions))), tokens, pages())

    return Capture(size + 4 * len(tokens), finish)


def find_model(snapshot: Snapshot, served: Sequence[ModelInfo]) -> ModelInfo:
    """Return the model with the snapshot's weights; of several, the one with its name. Raises SnapshotForeign if none has."""
    facts = snapshot.facts
    same = [model for model in served if model.fingerprint == facts.fingerprint]
    if not same:
        there = ", ".join(f"{model.name!r} with {model.fingerprint!r}" for model in served)
        raise SnapshotForeign(
            f"the snapshot is of model {facts.model!r} with fingerprint {facts.fingerprint!r}; served: {there}"
        )
    return max(same, key=lambda model: model.name == facts.model)


def ready(snapshot: Snapshot) -> Readied:
    """Read a snapshot's places, in any thread: that takes long where every token has one.

    Raises InvalidRequest for a token that does not see itself.
    """
    positions = Positions()
    for at, shift, seen in map(astuple, snapshot.facts.places):
        if shift is not None:
            positions.place(at, [at + shift])
        if seen is not None:
            bits = np.frombuffer(seen, np.uint8)
            if not bits[at // 8] << at % 8 & 0x80:
                raise InvalidRequest(f"token {at} of the snapshot does not see itself")
            positions.see(at, keep_bits(bits, at + 1))
    return Readied(snapshot, positions, *positions.reach(len(snapshot.tokens)))


def restore(
    engine: Engine, tenant: str, readied: Readied, *, trusted: bool = True, meter: PromptMeter | None = None
) -> Restored:
    """Return a new context that starts as the snapshot, of a model with the same fingerprint.

    KV of another layout is computed again when the context is used, and so is KV that finds no room in the cache after idle
    contexts have left it. ``trusted``: the KV was computed here. Raises InvalidRequest for tokens, positions or masks that the
    model cannot have, LimitExceeded for more tokens than its context holds, SnapshotDamaged for KV that cannot be right.
    ``meter`` counts its prompt tokens.
    """
    snapshot = readied.snapshot
    context = engine.create_context(tenant, snapshot.facts.salt, meter)
    with ExitStack() as undo:
        undo.callback(context.release)
        context.use_adapter(snapshot.facts.adapter)
        _append(context, readied)
        context.lineage, context.forks = snapshot.facts.lineage, snapshot.facts.forks
        restored = Restored(context, _restore_pages(engine, context, snapshot, trusted))
        undo.pop_all()
    return restored


def _place_marks(positions: Positions) -> Iterator[PlaceMark]:
    for at, shift, seen in positions.marks():
        yield PlaceMark(at, shift, None if seen is None else bits_of(seen, at + 1).tobytes())


def _append(context: CachedSequence, readied: Readied) -> None:
    """Append the tokens with their positions and visibility, which are checked."""
    context.append(readied.snapshot.tokens)
    if readied.lowest < 0 or readied.highest >= context.model_length:
        raise InvalidRequest(
            f"the positions {readied.lowest} to {readied.highest} are outside 0 to {context.model_length - 1}, the model's "
            "context"
        )
    context.place_all(readied.positions)


def _start_reading(driver: Driver, context: CachedSequence) -> Callable[[], PageData]:
    """Return a call that waits for the pages that hold computed tokens."""
    count = -(-context.computed // driver.page_size)
    if not count:
        return lambda: np.empty((0, driver.page_bytes), np.uint8)
    used = context.computed - (count - 1) * driver.page_size
    if context.parked is not None and context.parked.buffer is not None:
        buffer = context.parked.buffer
        return lambda: _cleared(driver, buffer.data[:count].copy(), used)
    pages = start_reading(driver, context.table.pages[:count])
    return lambda: _cleared(driver, pages(), used)


def _cleared(driver: Driver, pages: PageData, used: int) -> PageData:
    """Return the pages with zeros after the ``used`` tokens of the last one, where other contexts' data may be."""
    first = 0
    for size in driver.token_bytes:
        end = first + size * driver.page_size
        pages[-1, first + size * used : end] = 0
        first = end
    return pages


def _restore_pages(engine: Engine, context: CachedSequence, snapshot: Snapshot, trusted: bool) -> int:
    """Write the snapshot's pages into the cache, as far as they fit. Returns how many tokens have their K and V."""
    facts, driver = snapshot.facts, engine.driver
    fits = facts.kv_layout == driver.kv_layout and facts.page_size == driver.page_size
    if fits and snapshot.pages.shape[1] != driver.page_bytes:
        raise SnapshotDamaged("the snapshot is damaged: its pages have another size than its layout says")
    if fits and not trusted and not driver.bearable(snapshot.pages):
        raise SnapshotDamaged("the KV holds numbers that no model computes: not finite, or far too large")
    length = min(facts.computed, _make_room(engine, context, len(snapshot.pages)) * driver.page_size) if fits else 0
    if length:
        context.table.reserve(length)
        driver.write_pages(context.table.pages, np.ascontiguousarray(snapshot.pages[: len(context.table.pages)]))
        context.table.advance(length)
    private = 0 if length and not trusted else facts.irregular_from
    context.table.private_from = min((at for at in (private, context.irregular_from) if at is not None), default=None)
    context.note_restored(length)
    context.table.publish(context.tokens)  # now: a fork has to inherit where its shared pages stand in the index
    return length


def _make_room(engine: Engine, context: CachedSequence, pages: int) -> int:
    """Move idle contexts out of the cache for so many pages. Returns how many of them the context may take."""
    account = context.account
    allowed = min(pages, account.quota - account.used) if account.quota else pages
    while engine.pool.available < allowed and engine.contexts.park_another(context, idle=True):
        pass
    return max(0, min(allowed, engine.pool.available))
