"""Snapshots in a store that speaks S3: moto's server on this machine, asked by s3fs as a cloud would be."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inferd.protocol import InferdError, NotFound, SnapshotDamaged, Unavailable
from inferd_runtime.kv.context_store import ContextStore
from inferd_runtime.kv.snapshot_format import Facts, Snapshot, TurnMark, encode
from inferd_runtime.kv.snapshot_objects import SnapshotObjects

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'inferd[s3]'")
moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]  # others' packages warn
QUOTA = 1 << 30
PART = 5 << 20
"""What S3 takes as a part of an upload, at least (except the last)."""
buckets = (f"contexts-{number}" for number in itertools.count())


def make(tokens: int = 9, pages: int = 48) -> Snapshot:
    facts = Facts(
        model="org/m", fingerprint="f", kv_layout="l", page_size=4, computed=6, lineage=1, forks=0,
        turns=(TurnMark(0, True, False, False),),
    )  # fmt: skip
    return Snapshot(facts, list(range(tokens)), np.arange(pages, dtype=np.uint8).reshape(2, -1))


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    own = '{"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://127.0.0.1:%d", "region_name": "us-east-1"}}'
    yield own % port
    server.stop()


@pytest.fixture
def url(options: str) -> str:
    bucket = next(buckets)
    files, _ = ContextStore(f"s3://{bucket}", options).files()
    files.call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/of/inferd"


def server(url: str, options: str) -> SnapshotObjects:
    """The store as one server has it, with connections of its own."""
    files, path = ContextStore(url, options).files()
    return SnapshotObjects(files, path, QUOTA)


def outcome(work: Any) -> str:
    try:
        work()
    except InferdError as error:
        return error.code
    return ""


def test_what_one_server_saved_another_opens_lists_takes_and_deletes(url: str, options: str) -> None:
    here, there = server(url, options), server(url, options)
    for name in ("a", "../x", "a/b:c.d", "x" * 128):
        here.save("ann", name, make(7), overwrite=False)
        assert np.array_equal(there.load("ann", name).pages, make(7).pages)
    assert [one.name for one in there.saved("ann")] == sorted(["a", "../x", "a/b:c.d", "x" * 128])
    assert there.saved("bob") == []
    there.save("ann", "a", make(8), overwrite=True)
    assert len(here.load("ann", "a").tokens) == 8
    here.finish_take(here.take("ann", "a", lambda _: None), used=True)
    there.delete("ann", "../x")
    for name in ("a", "../x"):
        with pytest.raises(NotFound):
            there.load("ann", name)
    files, path = ContextStore(url, options).files()
    assert len(files.find(path)) == 2, "one object for each that is left, and no claim"


@pytest.mark.parametrize("kind", ["save", "take"])
def test_of_many_that_want_a_name_alone_at_most_one_has_it(url: str, options: str, kind: str) -> None:
    servers = [server(url, options) for _ in range(8)]
    for round_ in range(4):
        name, at_once = f"n{round_}", threading.Barrier(len(servers))
        if kind == "take":
            servers[0].save("ann", name, make(), overwrite=False)
        won: list[int] = []

        def race(number: int, name: str = name, at_once: threading.Barrier = at_once, won: list[int] = won) -> str:
            at_once.wait()

            def work() -> None:
                if kind == "save":
                    servers[number].save("ann", name, make(10 + number), overwrite=False)
                else:
                    servers[number].finish_take(servers[number].take("ann", name, lambda _: None), used=True)
                won.append(number)

            return outcome(work)

        with ThreadPoolExecutor(len(servers)) as pool:
            codes = list(pool.map(race, range(len(servers))))
        assert len(won) <= 1, codes
        assert set(codes) <= {"", "unavailable", "client.invalid", "client.not_found"}
        if kind == "save":
            again = outcome(lambda name=name: servers[0].save("ann", name, make(), overwrite=False))  # type: ignore[misc]
            assert again == ("client.invalid" if won else ""), "whoever tries again has it, or it is taken"
            tokens = len(servers[1].load("ann", name).tokens)
            assert tokens == (10 + won[0] if won else 9)


def test_who_overwrites_at_once_leaves_one_whole_snapshot(url: str, options: str) -> None:
    servers = [server(url, options) for _ in range(6)]
    stop = threading.Event()

    def write(number: int) -> None:
        for round_ in range(5):
            servers[number].save("ann", "n", make(10 + 10 * number + round_, pages=4800), overwrite=True)

    def read() -> int:
        count, own = 0, server(url, options)
        while not stop.is_set():
            try:
                assert np.array_equal(own.load("ann", "n").pages, make(9, pages=4800).pages)
                count += 1
            except (NotFound, Unavailable):
                pass  # not yet, or replaced faster than it can be read
        return count

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        list(pool.map(write, range(6)))
        stop.set()
        assert sum(one.result() for one in readers) > 0
    assert [one.name for one in servers[0].saved("ann")] == ["n"]
    servers[0].save("ann", "n", make(8), overwrite=True)
    files, path = ContextStore(url, options).files()
    assert len(files.find(path)) == 1


def test_an_upload_in_parts_that_breaks_off_is_never_seen_and_is_in_nobodys_way(url: str, options: str) -> None:
    store = server(url, options)
    store.save("ann", "n", make(7), overwrite=False)
    files, path = ContextStore(url, options).files()
    listed = next(iter(files.find(path)))
    bucket, key = listed.replace("00000001-", "00000002-", 1).split("/", 1)
    upload = files.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    files.call_s3("upload_part", Bucket=bucket, Key=key, UploadId=upload["UploadId"], PartNumber=1, Body=b"x" * PART)
    assert len(store.load("ann", "n").tokens) == 7
    assert len(store.saved("ann")) == 1
    store.save("ann", "n", make(8), overwrite=True)
    assert len(store.load("ann", "n").tokens) == 8


def test_an_object_that_is_cut_short_or_changed_is_not_opened(url: str, options: str) -> None:
    store = server(url, options)
    store.save("ann", "n", make(7), overwrite=False)
    files, path = ContextStore(url, options).files()
    listed = next(iter(files.find(path)))
    data = encode(make(7))
    files.pipe_file(listed, data[:-1])
    with pytest.raises(NotFound):
        server(url, options).load("ann", "n")
    files.pipe_file(listed, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SnapshotDamaged):
        server(url, options).load("ann", "n")


def test_a_snapshot_of_many_parts_comes_back_as_it_was(url: str, options: str) -> None:
    """s3fs uploads what is larger than 50 MiB in parts."""
    large = make(9, pages=120 << 20)
    server(url, options).save("ann", "large", large, overwrite=False)
    assert np.array_equal(server(url, options).load("ann", "large").pages, large.pages)


def test_more_objects_than_a_store_lists_at_once_are_all_found(url: str, options: str) -> None:
    store = server(url, options)
    files, path = ContextStore(url, options).files()
    store.save("ann", "n0", make(), overwrite=False)
    one = next(iter(files.find(path)))
    data = files.cat_file(one)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: files.pipe_file(one.replace("/=n0/", f"/=n{number}/"), data), range(1, 1100)))
    assert len(server(url, options).saved("ann")) == 1100
    assert len(server(url, options).load("ann", "n1099").tokens) == 9
