"""The file of responses: each tenant sees its own, the oldest go first, and damage is a typed error."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferd.protocol import Unavailable
from inferd_runtime.server.dialects.responses.items import message_item
from inferd_runtime.server.dialects.responses.stored import StoredResponse
from inferd_runtime.server.response_store.response_file import (
    FORMAT,
    MOST_ITEMS,
    ResponseFile,
    about_bytes,
    packed_response,
)
from inferd_runtime.server.tenancy.quotas import Quotas


def response(name: str, text: str = "hi", earlier: int = 0) -> StoredResponse:
    said: dict[str, Any] = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": []}
    return StoredResponse({"id": name, "output": [said]}, [message_item("user", text) for _ in range(earlier + 1)])


def keep(file: ResponseFile, tenant: str, stored: StoredResponse) -> None:
    file.keep(tenant, stored.id, *packed_response(stored))


@pytest.fixture
def file(tmp_path: Path) -> Any:
    opened = ResponseFile(tmp_path / "responses.sqlite3")
    yield opened
    opened.close()


def test_a_response_is_found_by_its_tenant_alone(file: ResponseFile) -> None:
    keep(file, "ann", response("a"))
    found = file.find("ann", "a")
    assert found is not None
    assert found.id == "a"
    assert file.find("bob", "a") is None
    assert file.items("bob", ["msg_a"]) == {}
    assert not file.delete("bob", "a")
    assert file.delete("ann", "a")
    assert file.find("ann", "a") is None
    assert file.items("ann", ["msg_a"]) == {}


def test_logprobs_are_kept_as_the_json_that_they_were_and_no_text_of_a_client_becomes_json(file: ResponseFile) -> None:
    said = {"type": "output_text", "text": "a", "logprobs": msgspec.Raw(b'[{"token":"a"}]')}
    sent = {"type": "output_text", "text": "b", "logprobs": '","injected":"'}
    stored = msgspec.structs.replace(response("a"), events=b"packed")
    stored.response["output"][0]["content"], stored.input[0]["content"] = [said], [sent]
    keep(file, "ann", stored)
    found = file.find("ann", "a")
    assert found is not None
    assert found.events == b"packed"
    assert msgspec.json.encode(found) == msgspec.json.encode(stored)
    (item,) = file.items("ann", ["msg_a"]).values()
    assert msgspec.json.encode(item["content"]) == msgspec.json.encode([said])


def test_responses_survive_a_restart(tmp_path: Path) -> None:
    stored = response("a")
    first = ResponseFile(tmp_path / "r")
    keep(first, "ann", stored)
    first.close()
    second = ResponseFile(tmp_path / "r")
    assert second.find("ann", "a") == stored
    assert set(second.items("ann", ["msg_a", stored.input[0]["id"], "other"])) == {"msg_a", stored.input[0]["id"]}
    second.close()


def test_the_oldest_go_first_and_the_newest_stays(file: ResponseFile) -> None:
    for name in "abc":
        keep(file, "ann", response(name))
    keep(file, "bob", response("d"))
    file.prune("ann", Quotas(kept_runs=2))
    assert [name for name in "abcd" if file.find("ann", name)] == ["b", "c"]
    file.prune("ann", Quotas(kept_runs=2, kept_bytes=1))
    assert [name for name in "abcd" if file.find("ann", name)] == ["c"]
    assert file.find("bob", "d") is not None


def test_a_tenant_without_a_limit_keeps_everything(file: ResponseFile) -> None:
    for name in "abc":
        keep(file, "ann", response(name))
    file.prune("ann", Quotas(kept_runs=0, kept_bytes=0))
    assert all(file.find("ann", name) for name in "abc")


def test_only_the_newest_items_of_a_long_conversation_are_indexed() -> None:
    stored = response("a", earlier=2 * MOST_ITEMS)
    _, items = packed_response(stored)
    assert len(items) == MOST_ITEMS
    assert items[-1] == "msg_a"


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"no database" * 1000)
    file = ResponseFile(path)
    keep(file, "ann", response("a"))
    file.close()
    assert len(list(tmp_path.glob("r.damaged-*"))) == 1


def test_a_file_whose_damage_sqlite_tells_in_bytes_that_are_no_text_is_moved_aside(tmp_path: Path) -> None:
    """Each response was an error 500 with a traceback, for as long as the server ran."""
    path = tmp_path / "r"
    ResponseFile(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE\x98TABLE", 1))
    file = ResponseFile(path)
    keep(file, "ann", response("a"))
    file.close()
    assert len(list(tmp_path.glob("r.damaged-*"))) == 1


def test_a_file_that_another_process_holds_is_unavailable(tmp_path: Path) -> None:
    file = ResponseFile(tmp_path / "r")
    other = sqlite3.connect(tmp_path / "r", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match=FORMAT.what):
        keep(file, "ann", response("a"))
    other.close()
    keep(file, "ann", response("a"))
    file.close()


def test_what_waits_to_be_written_is_counted_about_as_it_is() -> None:
    scores: list[Any] = [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}] * 100
    long = response("a", "x" * 100_000, earlier=3)
    long.response["output"][0]["content"] = [{"type": "output_text", "text": "y" * 50_000, "logprobs": scores}]
    packed = len(packed_response(long)[0])
    assert packed <= about_bytes(long) <= 1.5 * packed


def test_the_size_of_what_would_be_read_counts_each_response_once(file: ResponseFile) -> None:
    one, two = response("a", "x" * 1000), response("b", "x" * 2000)
    for stored in (one, two):
        keep(file, "ann", stored)
    sizes = [len(packed_response(stored)[0]) for stored in (one, two)]
    assert file.size("ann", "a", []) == sizes[0]
    assert file.size("ann", "a", ["msg_a", one.input[0]["id"], "msg_b"]) == sum(sizes)
    assert file.size("bob", "a", ["msg_b"]) == 0
