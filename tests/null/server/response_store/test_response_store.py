"""The store of responses as the gateway uses it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from inferd.chat import ChoiceFinished, TextDelta, UsageReport
from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import OpenAiResponses, ResponsesExchange
from inferd_runtime.server.dialects.responses.stored import StoredResponse
from inferd_runtime.server.response_store.response_store import RESPONSES_FILE, ResponseStore, open_response_store
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all


def scenario(folder: Path, body: Callable[[ResponseStore], Awaitable[None]], quotas: Quotas | None = None) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            async with open_response_store(folder / RESPONSES_FILE, same_for_all(quotas or Quotas())) as store:
                await body(store)

    anyio.run(main)


def asked(**body: Any) -> ResponsesExchange:
    return OpenAiResponses().read(json.dumps({"model": "t", "input": "hi", **body}).encode(), ClientHeaders())


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
