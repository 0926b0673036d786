"""Saved contexts of the embedded model in another engine: the same bits of KV, and the same tokens after them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferd import protocol as p
from inferd_runtime.engine.sequences.snapshots import export_kv, import_kv
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshot_format import Snapshot, decode, encode
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

HOT = p.Sampling(temperature=0.8, top_p=0.9, seed=11)
PROMPT = ("Repeat the text.", "A small green boat left the harbour at 5:45 with 17 goats.")
OTHER_PROCESS = """
import sys, torch
from pathlib import Path
from inferd import protocol as p
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

torch.set_num_threads(1)
store = SnapshotStore(SnapshotFolder(Path(sys.argv[1]), 1 << 30))
session = DirectSession(serve_model(EngineSettings(threads=1)), snapshots=store)
opened = session.call(p.OpenSaved("a"))
sampling = p.Sampling(temperature=0.8, top_p=0.9, seed=11)
print(opened.recomputed, *session.generate(opened.context, sampling=sampling, max_tokens=24).tokens)
session.close()
store.close()
"""


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """Two engines on the same weights, the second with other pages."""
    return tuple(serve_model(EngineSettings(threads=1, page_size=size)) for size in (16, 8))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    store = SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 30))
    yield store
    store.close()


@pytest.fixture
def session(models: Any, store: SnapshotStore) -> Iterator[DirectSession]:
    session = DirectSession(models[0], snapshots=store)
    yield session
    session.close()


def used(session: DirectSession) -> int:
    """A context with a prefilled prompt and a generated answer."""
    context = session.chat(*PROMPT)
    session.generate(context, sampling=HOT, max_tokens=13)
    return context


def again(session: DirectSession, context: int) -> list[int]:
    return session.generate(context, sampling=HOT, max_tokens=24).tokens


def test_the_kv_comes_back_to_the_bit(session: DirectSession) -> None:
    context = used(session)
    first = decode(session.call(p.ExportContext(context)).data)
    session.call(p.SaveContext(context, "a"))
    opened = session.call(p.TakeSaved("a"))
    second = decode(session.call(p.ExportContext(opened.context)).data)
    assert (opened.restored, opened.recomputed) == (opened.length - 1, 0)
    assert np.array_equal(first.pages, second.pages)
    assert first.facts == second.facts
    assert np.any(first.pages)
    assert again(session, opened.context) == again(session, context)


@pytest.mark.long
def test_another_process_goes_on_with_the_same_tokens(session: DirectSession, tmp_path: Path) -> None:
    context = used(session)
    session.call(p.SaveContext(context, "a"))
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "snapshots")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.split()] == [0, *again(session, context)]


def test_a_context_without_kv_is_saved_as_tokens(session: DirectSession) -> None:
    context = session.chat(*PROMPT)
    session.call(p.SaveContext(context, "a"))
    opened = session.call(p.TakeSaved("a"))
    assert (opened.restored, opened.recomputed, opened.pending) == (0, 0, opened.length)
    assert again(session, opened.context) == again(session, context)


def test_rows_that_hold_no_token_are_zero(session: DirectSession) -> None:
    """Whatever another tenant's context left in the last page does not leave with this one's."""
    other = session.text("x" * 400)
    session.call(p.FlushContext(other))
    session.call(p.ReleaseContext(other))
    session.engine.pool.forget_kept()
    context = session.text("y" * 60)
    session.call(p.FlushContext(context))
    snapshot = decode(session.call(p.ExportContext(context)).data)
    driver = session.engine.driver
    used = snapshot.facts.computed % driver.page_size
    assert used
    first = 0
    for size in driver.token_bytes:
        rows = snapshot.pages[-1, first : first + size * driver.page_size].reshape(driver.page_size, size)
        assert rows[:used].any(axis=1).all()
        assert not rows[used:].any()
        first += size * driver.page_size
    assert first == driver.page_bytes


def test_other_pages_are_computed_again_with_the_same_tokens(
    session: DirectSession, models: Any, store: SnapshotStore
) -> None:
    context = used(session)
    session.call(p.SaveContext(context, "a"))
    other = DirectSession(models[1], snapshots=store)
    opened = other.call(p.OpenSaved("a"))
    assert (opened.restored, opened.recomputed) == (0, opened.length - 1)
    assert again(other, opened.context) == again(session, context)
    other.close()


def test_engines_exchange_contexts_as_bytes(session: DirectSession, models: Any) -> None:
    """What moves a context from a prefill engine to a decode engine."""
    prefill, decode_on = models[0], serve_model(EngineSettings(threads=1))
    handle = used(session)
    data = export_kv(prefill.engine, prefill.info, session.session._state.context(handle).context)
    moved = import_kv(decode_on.engine, decode_on.info, "ann", data)
    assert moved.restored == len(moved.context.tokens) - 1
    assert (
        export_kv(decode_on.engine, decode_on.info, moved.context) != data
    )  # it says that its KV was not computed there
    assert np.array_equal(decode(export_kv(decode_on.engine, decode_on.info, moved.context)).pages, decode(data).pages)
    foreign = dataclasses.replace(decode_on.info, fingerprint="other")
    with pytest.raises(p.SnapshotForeign, match="'other'"):
        import_kv(decode_on.engine, foreign, "ann", data)
    moved.context.release()
    decode_on.engine.check_integrity()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
def test_imported_kv_cannot_spoil_the_pages_of_others(session: DirectSession, value: float) -> None:
    """A page keeps its content when it is given back; what masked attention multiplies by zero must be finite."""
    data = session.call(p.ExportContext(used(session))).data
    snapshot = decode(data)
    pages = snapshot.pages.copy()
    pages.view(np.float32)[0, 77] = value
    forged = encode(Snapshot(snapshot.facts, snapshot.tokens, pages))
    with pytest.raises(p.SnapshotDamaged, match="no model computes"):
        session.call(p.ImportContext(forged))
    assert session.call(p.ImportContext(data)).restored > 0
