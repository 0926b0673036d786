"""An operation from docs/extending through the real session: by the SDK's seam, as JSON, and over the engine's wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from sessions import new_grants, opening

from inferd import InvalidRequest, NotFound, protocol as p
from inferd_runtime.session import session, wire
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import run_program


@pytest.fixture
def operations_stay() -> Iterator[None]:
    """Leave the table of operations as it was."""
    before = dict(p.OPERATIONS)
    yield
    p.OPERATIONS.clear()
    p.OPERATIONS.update(before)


@pytest.fixture
def added(operations_stay: None, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's operation, which it registered itself, with its handler in the session's table."""
    for request, handler in page["HANDLERS"].items():
        assert p.OPERATIONS[request.op] is request
        monkeypatch.setitem(session.HANDLERS, request, handler)
    return page


def test_a_program_calls_it(added: dict[str, Any]) -> None:
    async def program() -> list[int]:
        with pytest.raises(NotFound, match="no model 'other' is served"):
            await added["count"]("a", model="other")
        with pytest.raises(InvalidRequest, match="at least one"):
            await added["count"]()
        return await added["count"]("abc", "", "née")

    assert run_program(program) == [3, 0, 4]


@pytest.mark.parametrize("form", [wire.JSON, wire.MSGPACK])
def test_the_wire_checks_its_types(added: dict[str, Any], form: bytes) -> None:
    replies: list[wire.LinkReply] = []
    hub = SessionHub({"null": null_model()}, lambda who, frames: replies.append(wire.parse_reply(frames)), new_grants())
    hub.receive(b"a", opening("tenant", "label"))
    encode = msgspec.json.encode if form == wire.JSON else msgspec.msgpack.encode
    for payload in ({"texts": ["ab", "c"]}, {"texts": "ab"}, {"texts": []}):
        hub.receive(b"a", wire.request_frames(7, "model.count", form, encode(payload)))
    decode = msgspec.json.decode if form == wire.JSON else msgspec.msgpack.decode
    assert [reply.ok for reply in replies] == [True, True, False, False]
    assert decode(replies[1].payload) == {"counts": [2, 1]}
    assert {decode(reply.payload)["code"] for reply in replies[2:]} == {"client.invalid"}
