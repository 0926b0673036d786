"""The store of responses as the gateway uses it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from inferd.chat import ChoiceFinished, TextDelta, UsageReport
from inferd.protocol import InvalidRequest, NotFound, Unavailable
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange, read_responses
from inferd_runtime.server.dialects.responses.stored import StoredResponse
from inferd_runtime.server.response_store import response_store
from inferd_runtime.server.response_store.response_file import packed_response
from inferd_runtime.server.response_store.response_store import RESPONSES_FILE, ResponseStore, open_response_store
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all


def scenario(
    folder: Path,
    body: Callable[[ResponseStore], Awaitable[None]],
    quotas: Quotas | None = None,
    most_bytes: int = 4 << 20,
) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            path, quotas_of = folder / RESPONSES_FILE, same_for_all(quotas or Quotas())
            async with open_response_store(path, quotas_of, most_bytes, AnswerPace()) as store:
                await body(store)

    anyio.run(main)


def asked(**body: Any) -> ResponsesExchange:
    return read_responses(json.dumps({"model": "t", "input": "hi", **body}).encode(), ClientHeaders())


def answered(**body: Any) -> StoredResponse:
    stored = answer_to(asked(**body))
    assert stored is not None
    return stored


def answer_to(exchange: ResponsesExchange) -> StoredResponse | None:
    """Answer, and return what is to be kept."""
    kept: list[StoredResponse] = []
    exchange.when_complete = kept.append
    exchange.opening()
    for event in (TextDelta("yes"), ChoiceFinished("stop"), UsageReport(1, 1)):
        exchange.chunks(event)
    exchange.closing()
    return kept[0] if kept else None


def test_what_was_just_answered_can_be_followed_at_once(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        first = answered()
        store.keep(first, "ann")
        second = asked(previous_response_id=first.id, input="and?")
        await store.follow(second, "ann")
        assert [message.content for message in second.request.messages] == ["hi", "yes", "and?"]
        kept = answer_to(second)
        assert kept is not None
        store.keep(kept, "ann")
        assert (await store.find("ann", kept.id)).input == [*first.conversation, kept.input[-1]]

    scenario(tmp_path, body)


def test_nobody_follows_finds_or_deletes_the_response_of_another_tenant(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        first = answered()
        store.keep(first, "ann")
        with pytest.raises(InvalidRequest) as caught:
            await store.follow(asked(previous_response_id=first.id), "bob")
        assert caught.value.detail == {"param": "previous_response_id", "code": "previous_response_not_found"}
        item = first.response["output"][0]["id"]
        with pytest.raises(NotFound):
            await store.follow(asked(input=[{"type": "item_reference", "id": item}]), "bob")
        with pytest.raises(NotFound):
            await store.find("bob", first.id)
        with pytest.raises(NotFound):
            await store.delete("bob", first.id)
        await store.delete("ann", first.id)
        with pytest.raises(NotFound):
            await store.find("ann", first.id)

    scenario(tmp_path, body)


def test_what_is_not_to_be_stored_is_not_kept() -> None:
    assert answer_to(asked(store=False)) is None


def test_a_tenant_keeps_no_more_than_its_quota(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        ids = []
        for _ in range(3):
            kept = answered()
            store.keep(kept, "ann")
            ids.append(kept.id)
        assert (await store.find("ann", ids[2])).id == ids[2]
        for gone in ids[:2]:
            with pytest.raises(NotFound):
                await store.find("ann", gone)

    scenario(tmp_path, body, Quotas(kept_runs=1))


def test_responses_are_written_when_the_store_closes(tmp_path: Path) -> None:
    kept = answered()

    async def before(store: ResponseStore) -> None:
        store.keep(kept, "ann")

    async def after(store: ResponseStore) -> None:
        assert await store.find("ann", kept.id) == kept

    scenario(tmp_path, before)
    scenario(tmp_path, after)


def test_a_conversation_cannot_grow_by_following_until_it_holds_up_the_gateway(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        last = answered(input="x" * 5000)
        for _ in range(2):
            store.keep(last, "ann")
            exchange = asked(previous_response_id=last.id, input="x" * 5000)
            await store.follow(exchange, "ann")
            kept = answer_to(exchange)
            assert kept is not None
            last = kept
        store.keep(last, "ann")
        with pytest.raises(InvalidRequest, match="as it is kept") as caught:
            await store.follow(asked(previous_response_id=last.id, input="x" * 5000), "ann")
        assert caught.value.detail["param"] == "previous_response_id"

    scenario(tmp_path, body, most_bytes=20_000)


def test_references_cannot_have_one_small_request_read_many_long_responses(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        items = []
        for _ in range(4):
            kept = answered(input="x" * 5000)
            store.keep(kept, "ann")
            items.append({"type": "item_reference", "id": kept.response["output"][0]["id"]})
        await store.follow(asked(input=items[:2]), "ann")
        with pytest.raises(InvalidRequest, match="as it is kept") as caught:
            await store.follow(asked(input=items), "ann")
        assert caught.value.detail["param"] == "input"

    scenario(tmp_path, body, most_bytes=20_000)


def test_a_response_that_failed_keeps_no_copy_of_what_it_followed(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        first = answered()
        store.keep(first, "ann")
        second = asked(previous_response_id=first.id, input="and?", background=True)
        await store.follow(second, "ann")
        second.when_complete = lambda stored: store.keep(stored, "ann")
        second.failure(Unavailable("gone"))
        failed = await store.find("ann", second.id)
        assert [item["content"][0]["text"] for item in failed.input] == ["and?"]
        with pytest.raises(InvalidRequest, match="failed") as caught:
            await store.follow(asked(previous_response_id=second.id), "ann")
        assert caught.value.detail["param"] == "previous_response_id"

    scenario(tmp_path, body)


def test_responses_are_not_packed_in_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def packed(stored: StoredResponse) -> tuple[bytes, list[str]]:
        threads.append(threading.current_thread())
        return packed_response(stored)

    async def body(store: ResponseStore) -> None:
        kept = answered()
        store.keep(kept, "ann")
        assert await store.find("ann", kept.id) == kept
        assert threads[0] is not threading.current_thread()

    monkeypatch.setattr(response_store, "packed_response", packed)
    scenario(tmp_path, body)


@asynccontextmanager
async def unending() -> AsyncIterator[Any]:
    class Silent:
        run = ""

        async def next(self) -> list[Any]:
            await anyio.sleep_forever()
            return []

    yield Silent()


def test_what_a_server_was_at_when_it_was_killed_has_failed_after_the_restart(tmp_path: Path) -> None:
    """The file is read as the killed server left it, before it could write anything more."""
    exchange = asked(background=True)
    killed, again = tmp_path / "killed", tmp_path / "again"
    killed.mkdir()

    async def before(store: ResponseStore) -> None:
        begun = await store.begin(exchange, unending(), "ann")
        assert begun.exchange.begun.response["status"] == "in_progress"
        with pytest.raises(InvalidRequest, match="are not kept"):
            await store.events("ann", exchange.id, -1)
        assert (await store.find("ann", exchange.id)).response["status"] == "in_progress"
        with pytest.raises(InvalidRequest, match="not over"):
            await store.follow(asked(previous_response_id=exchange.id), "ann")
        shutil.copytree(killed, again)

    async def after(store: ResponseStore) -> None:
        found = (await store.find("ann", exchange.id)).response
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert (await store.cancel("ann", exchange.id)).response == found
        with pytest.raises(InvalidRequest, match="not over"):
            await store.follow(asked(previous_response_id=exchange.id), "ann")
        with pytest.raises(NotFound):
            await store.find("bob", exchange.id)
        await store.delete("ann", exchange.id)
        with pytest.raises(NotFound):
            await store.find("ann", exchange.id)

    scenario(killed, before)
    scenario(again, after)


def test_what_cannot_be_kept_is_not_answered_in_the_background(tmp_path: Path) -> None:
    """Nobody could ask for the answer: its client would be told that there is no such response."""

    async def body(store: ResponseStore) -> None:
        exchange = asked(background=True)
        with pytest.raises(Unavailable, match="does not work"):
            await store.begin(exchange, unending(), "ann")
        assert store.background.find("ann", exchange.id) is None

    (tmp_path / RESPONSES_FILE).mkdir()
    scenario(tmp_path, body)


def test_what_is_over_before_its_beginning_is_written_stays_over(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        kept = answered(background=True)
        store.keep(kept, "ann")
        begun = StoredResponse({**kept.response, "status": "in_progress"}, kept.input)
        await store._archive.read(lambda file: file.begin("ann", kept.id, packed_response(begun)[0]))
        assert (await store.find("ann", kept.id)).response["status"] == "completed"

    scenario(tmp_path, body)


def test_how_it_ended_takes_the_place_of_how_it_began(tmp_path: Path) -> None:
    async def body(store: ResponseStore) -> None:
        kept = answered(background=True)
        begun = StoredResponse({**kept.response, "status": "in_progress", "output": []}, kept.input)
        await store._archive.read(lambda file: file.begin("ann", kept.id, packed_response(begun)[0]))
        store.keep(kept, "ann")
        assert (await store.find("ann", kept.id)).response == kept.response
        reference = asked(input=[{"type": "item_reference", "id": kept.response["output"][0]["id"]}])
        await store.follow(reference, "ann")

    scenario(tmp_path, body)
