"""Snapshots in a store that machines share: whole or not there, whoever writes, fails or hangs meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tiers import examples

from inferd.protocol import (
    InferdError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    SnapshotDamaged,
    SnapshotForeign,
    Unavailable,
)
from inferd_runtime.kv import snapshot_place
from inferd_runtime.kv.context_store import ContextStore
from inferd_runtime.kv.snapshot_format import Facts, Snapshot, TurnMark
from inferd_runtime.kv.snapshot_objects import CLAIM_SECONDS, UNFINISHED_SECONDS, SnapshotObjects
from inferd_runtime.kv.snapshot_place import BLOCK, Taken
from inferd_runtime.kv.snapshots import SnapshotStore

QUOTA = 1 << 20
roots = (f"/contexts-{number}" for number in itertools.count())


def make(tokens: int = 9) -> Snapshot:
    facts = Facts(
        model="org/m", fingerprint="f", kv_layout="l", page_size=4, computed=6, lineage=1, forks=0,
        turns=(TurnMark(0, True, False, False),),
    )  # fmt: skip
    return Snapshot(facts, list(range(tokens)), np.arange(48, dtype=np.uint8).reshape(2, 24))


class AFileSystem(MemoryFileSystem):
    """Calls ``before`` with the name of each request: it may raise, or hang."""

    before: Callable[[str], None] = staticmethod(lambda request: None)

    def pipe_file(self, path: str, value: bytes, **more: Any) -> None:
        self.before("write")
        super().pipe_file(path, value, **more)

    def find(self, path: str, **more: Any) -> Any:
        self.before("list")
        return super().find(path, **more)

    def cat_file(self, path: str, **more: Any) -> Any:
        self.before("read")
        return super().cat_file(path, **more)

    def rm_file(self, path: str) -> None:
        self.before("remove")
        super().rm_file(path)


def files() -> AFileSystem:
    return AFileSystem(skip_instance_cache=True)


@pytest.fixture
def root() -> Iterator[str]:
    root = next(roots)
    yield root
    with contextlib.suppress(FileNotFoundError):
        MemoryFileSystem().rm(root, recursive=True)


@pytest.fixture
def here(root: str) -> SnapshotObjects:
    return SnapshotObjects(files(), root, QUOTA)


@pytest.fixture
def there(root: str) -> SnapshotObjects:
    """Another server on the same store."""
    return SnapshotObjects(files(), root, QUOTA)


def paths(root: str) -> list[str]:
    return sorted(files().find(root))


def test_what_one_server_saved_another_opens(here: SnapshotObjects, there: SnapshotObjects, root: str) -> None:
    for name in ("../../etc", "..", ".", "/", "a/b:c.d-e_f", "x" * 128):
        saved = here.save("../ann", name, make(), overwrite=False)
        opened = there.load("../ann", name)
        assert (opened.tokens, opened.facts) == (make().tokens, make().facts)
        assert np.array_equal(opened.pages, make().pages)
        assert saved == there.saved("../ann")[[one.name for one in there.saved("../ann")].index(name)]
        assert (saved.model, saved.length) == ("org/m", 9)
    assert all(path.startswith(f"{root}/") and ".." not in path.split("/") for path in paths(root))
    assert not [path for path in paths(root) if len(path.rsplit("/", 1)[1]) > 255]


def test_a_tenant_has_what_it_saved_and_nothing_of_others(here: SnapshotObjects, there: SnapshotObjects) -> None:
    here.save("ann", "a", make(7), overwrite=False)
    for forbidden in (there.load, there.delete, lambda tenant, name: there.take(tenant, name, lambda _: None)):
        with pytest.raises(NotFound, match="there is no snapshot 'a'"):
            forbidden("bob", "a")
    assert there.saved("bob") == []
    here.save("bob", "a", make(8), overwrite=False)
    there.delete("bob", "a")
    assert len(there.load("ann", "a").tokens) == 7


def test_a_name_is_overwritten_only_when_asked_and_leaves_one_object(
    here: SnapshotObjects, there: SnapshotObjects, root: str
) -> None:
    here.save("ann", "a", make(7), overwrite=False)
    with pytest.raises(InvalidRequest, match="overwrite=True"):
        there.save("ann", "a", make(8), overwrite=False)
    behind = SnapshotObjects(files(), root, QUOTA, now=lambda: 5.0)  # whose clock is wrong
    behind.save("ann", "a", make(8), overwrite=True)
    assert len(here.load("ann", "a").tokens) == 8
    assert len(paths(root)) == 1


def test_bytes_and_objects_of_a_tenant_are_bounded(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = SnapshotObjects(files(), root, 2 * BLOCK)
    for name in ("a", "b"):
        place.save("ann", name, make(), overwrite=False)
    with pytest.raises(LimitExceeded) as caught:
        place.save("ann", "c", make(), overwrite=False)
    assert caught.value.detail["limit"] == "snapshot_bytes"
    place.save("ann", "a", make(), overwrite=True)
    place.save("bob", "c", make(), overwrite=False)
    monkeypatch.setattr(snapshot_place, "MAX_SNAPSHOTS", 1)
    place.delete("ann", "b")
    with pytest.raises(LimitExceeded) as caught:
        place.save("ann", "b", make(), overwrite=True)
    assert caught.value.detail["limit"] == "snapshots"
    assert len(paths(root)) == 2


def test_two_that_save_at_once_do_not_both_go_above_the_quota(root: str) -> None:
    one, other = files(), files()
    place, second = SnapshotObjects(one, root, BLOCK), SnapshotObjects(other, root, BLOCK)

    def meanwhile(request: str) -> None:
        if request == "write":
            one.before = lambda request: None
            second.save("ann", "b", make(), overwrite=True)

    one.before = meanwhile
    with pytest.raises(LimitExceeded):
        place.save("ann", "a", make(), overwrite=True)
    assert [saved.name for saved in place.saved("ann")] == ["b"]


def test_an_object_that_is_not_finished_is_never_opened_and_goes_one_day(here: SnapshotObjects, root: str) -> None:
    here.save("ann", "a", make(), overwrite=False)
    (whole,) = paths(root)
    store = files()
    half = whole.replace("00000001-", "00000002-")
    store.pipe_file(half, store.cat_file(whole)[:-1])
    store.pipe_file(half.replace("=a", "=b"), b"")
    assert len(here.load("ann", "a").tokens) == 9
    assert [saved.name for saved in here.saved("ann")] == ["a"]
    with pytest.raises(NotFound):
        here.load("ann", "b")
    later = SnapshotObjects(files(), root, QUOTA, now=lambda: 1e10 + UNFINISHED_SECONDS)
    later.save("ann", "c", make(), overwrite=True)
    assert len(paths(root)) == 2
    assert len(later.load("ann", "a").tokens) == 9


def test_a_damaged_object_is_refused_and_can_be_replaced(here: SnapshotObjects, root: str) -> None:
    here.save("ann", "a", make(), overwrite=False)
    store, (path,) = files(), paths(root)
    good = store.cat_file(path)
    for at in (0, 40, len(good) - 1):
        store.pipe_file(path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        for opens in (here.load, lambda tenant, name: here.take(tenant, name, lambda _: None)):
            with pytest.raises(SnapshotDamaged):
                opens("ann", "a")
    here.save("ann", "a", make(7), overwrite=True)
    assert len(here.load("ann", "a").tokens) == 7
    store.pipe_file(f"{root}/somebody's notes", b"?")
    assert len(here.saved("ann")) == 1


def test_a_snapshot_is_taken_once(here: SnapshotObjects, there: SnapshotObjects, root: str) -> None:
    here.save("ann", "a", make(), overwrite=False)
    taken = here.take("ann", "a", lambda _: None)
    with pytest.raises(Unavailable, match="try again"):
        there.take("ann", "a", lambda _: None)
    here.finish_take(taken, used=False)
    with pytest.raises(SnapshotForeign):
        there.take("ann", "a", foreign)
    taken = there.take("ann", "a", lambda _: None)
    there.finish_take(taken, used=True)
    with pytest.raises(NotFound):
        here.take("ann", "a", lambda _: None)
    assert paths(root) == []


def foreign(snapshot: Snapshot) -> None:
    raise SnapshotForeign("another model's")


def test_of_many_at_once_at_most_one_takes_or_saves(root: str) -> None:
    SnapshotObjects(files(), root, QUOTA).save("ann", "a", make(), overwrite=False)
    begin, done = threading.Barrier(6), list[object]()

    def at_once(work: Callable[[SnapshotObjects], object]) -> None:
        place = SnapshotObjects(files(), root, QUOTA)
        begin.wait(10)
        with contextlib.suppress(InferdError):
            done.append(work(place))

    for work in (
        lambda place: place.take("ann", "a", lambda _: None),
        lambda place: place.save("ann", "b", make(), overwrite=False),
    ):
        threads = [threading.Thread(target=at_once, args=(work,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(done) <= 1
        done.clear()


def test_a_claim_whose_owner_is_gone_ends(here: SnapshotObjects, root: str) -> None:
    here.save("ann", "a", make(), overwrite=False)
    here.take("ann", "a", lambda _: None)
    later = SnapshotObjects(files(), root, QUOTA, now=lambda: 1e10 + CLAIM_SECONDS)
    taken = later.take("ann", "a", lambda _: None)
    later.finish_take(taken, used=True)
    assert paths(root) == []


def test_one_that_is_replaced_while_it_is_read_is_read_again(root: str) -> None:
    slow = files()
    place, other = SnapshotObjects(slow, root, QUOTA), SnapshotObjects(files(), root, QUOTA)
    other.save("ann", "a", make(7), overwrite=True)
    turns = iter(range(1))

    def meanwhile(request: str) -> None:
        if request == "read" and next(turns, None) is not None:
            other.save("ann", "a", make(8), overwrite=True)

    slow.before = meanwhile
    assert len(place.load("ann", "a").tokens) == 8


class Broken(Exception):
    """What some backend raises: it is nobody's base class."""


class AStore(RuleBasedStateMachine):
    """Two servers on one store, whose requests break at random: what is opened was saved, as a whole."""

    names = st.sampled_from("ab")

    def __init__(self) -> None:
        super().__init__()
        self.root = next(roots)
        self.files = [files(), files()]
        self.now = 1e9
        self.places = [SnapshotObjects(one, self.root, QUOTA, lambda: self.now) for one in self.files]
        self.may_be: dict[str, set[int]] = {"a": {0}, "b": {0}}
        """By name the lengths that it may have now; 0: it is not there."""
        self.count = 0

    def attempt(self, at: int, breaks: int, work: Callable[[SnapshotObjects], object]) -> bool:
        """Do something; the request number ``breaks`` breaks, and all after it, as when a process ends."""
        left = itertools.count()

        def before(request: str) -> None:
            if next(left) >= breaks:
                raise Broken(request)

        self.files[at].before = before
        try:
            work(self.places[at])
        except (Unavailable, InvalidRequest, NotFound):
            return False
        finally:
            self.files[at].before = lambda request: None
        return True

    @rule()
    def claims_end(self) -> None:
        self.now += CLAIM_SECONDS

    @rule(at=st.integers(0, 1), name=names, breaks=st.integers(0, 9), overwrite=st.booleans())
    def save(self, at: int, name: str, breaks: int, overwrite: bool) -> None:
        self.count += 1
        length = 6 + self.count
        done = self.attempt(at, breaks, lambda place: place.save("ann", name, make(length), overwrite=overwrite))
        self.may_be[name] = {length} if done else {*self.may_be[name], length}

    @rule(at=st.integers(0, 1), name=names, breaks=st.integers(0, 9))
    def delete(self, at: int, name: str, breaks: int) -> None:
        done = self.attempt(at, breaks, lambda place: place.delete("ann", name))
        self.may_be[name] = {0} if done else self.may_be[name] | {0}

    @rule(at=st.integers(0, 1), name=names, breaks=st.integers(0, 9), used=st.booleans())
    def take(self, at: int, name: str, breaks: int, used: bool) -> None:
        taken: list[Taken] = []
        self.attempt(at, breaks, lambda place: taken.append(place.take("ann", name, lambda _: None)))
        if taken:
            assert len(taken[0].snapshot.tokens) in self.may_be[name]
            if self.attempt(at, breaks, lambda place: place.finish_take(taken[0], used=used)) and used:
                self.may_be[name] = {0}
            elif used:
                self.may_be[name] |= {0}

    @invariant()
    def what_is_opened_was_saved(self) -> None:
        for name, lengths in self.may_be.items():
            found = {self.opened(place, name) for place in self.places}
            assert len(found) == 1
            assert found <= lengths, (name, found, lengths)

    def opened(self, place: SnapshotObjects, name: str) -> int:
        try:
            return len(place.load("ann", name).tokens)
        except NotFound:
            return 0

    def teardown(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            MemoryFileSystem().rm(self.root, recursive=True)


def test_whatever_breaks_what_is_opened_was_saved_as_a_whole() -> None:
    run_state_machine_as_test(
        AStore, settings=settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
    )


def waits(hold: threading.Event) -> None:
    hold.wait(20)


def test_what_a_store_says_of_its_servers_and_keys_is_not_told_to_tenants(root: str) -> None:
    broken = files()

    def refuses(request: str) -> None:
        raise Broken("InvalidAccessKeyId: AKIA0123 at https://bucket.example")

    broken.before = refuses
    with pytest.raises(Unavailable, match="Broken") as caught:
        SnapshotObjects(broken, root, QUOTA).save("ann", "a", make(), overwrite=True)
    assert "AKIA" not in caught.value.message


# -- In the engine's process -------------------------------------------------------------------------------------------


def test_a_store_that_hangs_is_told_in_time_and_holds_up_nobody(root: str) -> None:
    hold, slow, told = threading.Event(), files(), list[Any]()
    slow.before = lambda request: waits(hold)
    store = SnapshotStore(SnapshotObjects(slow, root, QUOTA), threads=4, seconds=0.05)
    try:
        for _ in range(3):
            store.submit("ann", lambda place: place.save("ann", "a", make(), overwrite=True), told.append)
        while len(told) < 3:
            store.wait(0.01)
            store.poll()
        assert [type(one) for one in told] == [Unavailable] * 3
        assert "0.05 s" in told[0].message
        told.clear()
        hold.set()
        while len(told) < 2:  # those that had begun come to something after all; the third was left out
            store.wait(0.01)
            store.poll()
        assert not [one for one in told if isinstance(one, InferdError)]
    finally:
        hold.set()
        store.close()


def test_closing_does_not_wait_for_a_store_that_hangs(root: str) -> None:
    hold, slow, told = threading.Event(), files(), list[Any]()
    slow.before = lambda request: waits(hold)
    store = SnapshotStore(SnapshotObjects(slow, root, QUOTA), seconds=0.01)
    store.submit("ann", lambda place: place.saved("ann"), told.append)
    store.close()
    assert [type(one) for one in told] == [Unavailable]
    hold.set()


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_a_url_opens_a_store(tmp_path: Path) -> None:
    for url in (f"memory:/{next(roots)}", f"file://{tmp_path}/shared"):
        one, other = (SnapshotObjects(*store.files(), QUOTA) for store in (ContextStore(url), ContextStore(url, "{}")))
        one.save("ann", "a", make(), overwrite=False)
        assert len(other.load("ann", "a").tokens) == 9
        other.delete("ann", "a")
        assert one.saved("ann") == []
    assert ContextStore(f"file://{tmp_path}/shared").folder == f"{tmp_path}/shared"
    assert ContextStore("s3://bucket/folder").folder == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("there", "one URL"), ("/there", "one URL"), ("simplecache::s3://b", "one URL"), ("s3://key:secret@host/b", "options"),
        ("s3://b?secret=1", "options"), ("nothing://b", "nothing"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_and_not_repeated_with_its_secrets(url: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        ContextStore(url).check()
    assert "secret" not in caught.value.message.replace("secrets do not", "")


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(protocol: str) -> None:
        raise ImportError(f"Install something for {protocol}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for url, words in (("s3://b", r"inferd\[s3\]"), ("gs://b", r"inferd\[gcs\]"), ("abfs://b", "Install something")):
        with pytest.raises(InvalidRequest, match=words):
            ContextStore(url).check()


def test_options_that_a_backend_does_not_take_are_refused() -> None:
    for options in ('{"skip_instance_cache": 1, "asynchronous": ', "[1]"):
        with pytest.raises(InvalidRequest, match="takes no such options"):
            ContextStore("memory://x", options).files()
