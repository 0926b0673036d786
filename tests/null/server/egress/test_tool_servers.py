"""Servers of tools that lie: each costs whoever called it a typed error, within a bounded time."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("mcp")

import lying_tool_server
from mcp.shared import jsonrpc_dispatcher
from web_servers import Connection, web_server
from web_tools import greeting, over_http, reply_json

from inferd import InferdError, InvalidRequest, LimitExceeded, Unavailable
from inferd.client.brought_servers import HeldServer
from inferd.client.mcp_file import McpEntry
from inferd.protocol.mcp import (
    CallMcpTool,
    ConnectMcp,
    GetMcpPrompt,
    ListMcpPrompts,
    ListMcpResources,
    ListMcpTools,
    McpTools,
    ReadMcpResource,
)
from inferd_runtime.server.egress import mcp_process
from inferd_runtime.server.egress.mcp_limits import MAX_DESCRIPTION, kept_tools, schema_problem
from inferd_runtime.server.egress.mcp_process import ToolServer, tool_server
from inferd_runtime.server.egress.mcp_streams import MAX_MESSAGE_CONTAINERS, ContainerMeter, LineBuffer
from inferd_runtime.server.egress.tool_start import ToolServerStart
from inferd_runtime.server.services.mcp import MARGIN_SECONDS

SCRIPT = str(Path(lying_tool_server.__file__))


@asynccontextmanager
async def server(mode: str = "") -> AsyncIterator[ToolServer]:
    start = ToolServerStart("", "liar", "", (sys.executable, "-S", SCRIPT, mode))
    with anyio.fail_after(20):
        async with tool_server(start) as open_server:
            yield open_server


def call(tool: str = "echo", seconds: float = 5.0, **arguments: Any) -> CallMcpTool:
    return CallMcpTool("liar", tool, arguments or {"text": "hello"}, seconds)


async def test_tools_resources_and_prompts_are_listed_and_used() -> None:
    async with server() as liar:
        assert (await liar.connect(ConnectMcp("liar"))).offers == ["tools", "resources", "prompts"]
        assert [tool.name for tool in (await liar.list_tools(ListMcpTools("liar"))).tools] == ["echo", "add"]
        assert (await liar.call_tool(call("add", a=1, b=2))).structured == {"sum": 3}
        assert (await liar.list_resources(ListMcpResources("liar"))).items[0]["uri"] == "note://one"
        assert (await liar.read_resource(ReadMcpResource("liar", "note://one"))).items[0]["text"] == "a note"
        assert (await liar.list_prompts(ListMcpPrompts("liar"))).items[0]["name"] == "greet"
        assert (await liar.get_prompt(GetMcpPrompt("liar", "greet"))).items[0]["role"] == "user"
        with pytest.raises(InvalidRequest, match="no such tool"):
            await liar.call_tool(call("nothing"))


async def test_a_server_that_cannot_be_initialized_is_asked_what_it_is() -> None:
    """It speaks the protocol from 2026-07-28 on alone."""
    async with server("newest_alone") as newest:
        assert (await newest.connect(ConnectMcp("liar"))).offers == ["tools", "resources", "prompts"]
        assert (await newest.call_tool(call())).content == [{"type": "text", "text": "hello"}]
    held = HeldServer("mine", McpEntry(command=sys.executable, args=["-S", SCRIPT, "newest_alone"]))
    assert [tool.name for tool in (await held.list_tools()).tools] == ["echo", "add"]
    await held.close()


LIES = {
    "wants_elicitation": (InvalidRequest, "You must elicit"),
    "wrong_id": (LimitExceeded, "did not answer"),
    "no_result": (Unavailable, "no result of its kind"),
    "giant": (LimitExceeded, "bytes"),
    "giant_line": (LimitExceeded, "message of more than"),
    "flood": (LimitExceeded, "messages a minute"),
    "deep": (LimitExceeded, "lists and objects"),
    "surrogate": (LimitExceeded, "did not answer"),
    "hang": (LimitExceeded, "did not answer"),
    "crash": (Unavailable, "ended with code 3"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_a_typed_error(lie: str) -> None:
    kind, words = LIES[lie]
    seconds = 0.2 if words == "did not answer" else 15.0
    with pytest.raises(kind, match=words) as caught:
        async with server(lie) as liar:
            await liar.call_tool(call(seconds=seconds))
    assert "ending" not in str(caught.value)  # what a server prints is for the operator


@pytest.mark.parametrize("oddity", ["twice", "not_json", "stderr_flood", "asks_back"])
async def test_what_is_only_odd_is_borne(oddity: str) -> None:
    async with server(oddity) as liar:
        assert (await liar.call_tool(call())).content
        assert (await liar.call_tool(call())).content


@pytest.mark.parametrize("mode", ["silent", "old_version"])
async def test_a_server_that_does_not_greet_is_unavailable(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_process, "START_SECONDS", 1.0)
    with pytest.raises(Unavailable, match="does not greet"):
        async with server(mode):
            pytest.fail("it greeted")


@pytest.mark.parametrize("mode", ["many_tools", "endless_pages", "a_million_nothings"])
async def test_a_list_without_end_is_refused(mode: str) -> None:
    with pytest.raises(LimitExceeded):
        async with server(mode) as liar:
            await liar.list_tools(ListMcpTools("liar"))


async def test_a_tool_that_cannot_be_used_is_left_out_and_named() -> None:
    async with server("bad_tools") as liar:
        found = await liar.list_tools(ListMcpTools("liar"))
    assert [tool.name for tool in found.tools] == ["echo"]
    assert len(found.left_out) == len(lying_tool_server.BAD_TOOLS)


async def test_a_description_as_long_as_a_book_is_cut() -> None:
    async with server("long_description") as liar:
        (tool,) = (await liar.list_tools(ListMcpTools("liar"))).tools
    assert len(tool.description) == MAX_DESCRIPTION
    assert tool.description.endswith("[cut]")


async def test_a_command_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        async with tool_server(ToolServerStart("", "liar", "", ("/no/such/command",))):
            pytest.fail("it started")


@pytest.mark.parametrize(
    "schema",
    [None, [], {"type": "array"}, {"type": "object", "properties": 3}, {"type": "object", "const": float("nan")},
     {"type": "object", "const": 2**80}, {"type": "object", "x": "\ud800"}],
)  # fmt: skip
def test_a_schema_that_nobody_could_hold_is_refused(schema: Any) -> None:
    assert schema_problem(schema)


def test_tools_together_have_a_size() -> None:
    schema = {"type": "object", "description": "x" * 60_000}
    with pytest.raises(LimitExceeded):
        kept_tools({"name": f"t{number}", "inputSchema": schema} for number in range(20))


@pytest.mark.parametrize(
    ("tools", "properties", "limit"), [(60, 1, "mcp_reply_bytes"), (6, 1400, "mcp_schema_parts"), (257, 1, "mcp_tools")]
)
def test_too_many_schemas_are_refused_before_they_are_found_valid(
    monkeypatch: pytest.MonkeyPatch, tools: int, properties: int, limit: str
) -> None:
    """60 of 40 KB took a minute, and then were too many."""
    monkeypatch.setattr("jsonschema.Draft202012Validator.check_schema", lambda schema: pytest.fail("looked at"))
    named = {f"p{number}": {} for number in range(properties)}
    schema = {"type": "object", "title": "x" * (40_000 if tools == 60 else 10), "properties": named}
    with pytest.raises(LimitExceeded) as refused:
        kept_tools({"name": f"t{number}", "inputSchema": schema} for number in range(tools))
    assert refused.value.detail["limit"] == limit


def test_a_schema_that_is_left_out_leaves_the_others_their_room() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "string"}}}
    large = {"type": "object", "properties": {f"p{number}": {} for number in range(20_000)}}
    kept = kept_tools([{"name": "large", "inputSchema": large}, {"name": "plain", "inputSchema": plain}])
    assert [tool.name for tool in kept.tools] == ["plain"]
    assert kept.left_out == ["'large': the schema of its arguments has more than 65536 bytes"]


def test_lines_are_cut_where_they_end_and_bounded() -> None:
    lines = LineBuffer(10)
    assert lines.feed(b"ab\ncd") == [b"ab"]
    assert lines.feed(b"ef\n\n\r\ngh\n") == [b"cdef", b"gh"]
    with pytest.raises(LimitExceeded):
        lines.feed(b"x" * 11)
    with pytest.raises(InferdError):
        LineBuffer(10).feed(b"ok\n" + b"x" * 11 + b"\n")


async def good(connection: Connection, message: dict[str, Any]) -> None:
    await reply_json(connection, message, {"content": [{"type": "text", "text": connection.header("X-Token")}]})


async def endless_json(connection: Connection, message: dict[str, Any]) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        await connection.send(b" " * 65536)


async def endless_event(connection: Connection, message: dict[str, Any]) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ")
    while True:
        await connection.send(b"x" * 65536)


async def elsewhere(connection: Connection, message: dict[str, Any]) -> None:
    await connection.answer(b"", "307 Temporary Redirect", Location="http://127.0.0.1:1/stolen")


async def no_server(connection: Connection, message: dict[str, Any]) -> None:
    await connection.answer(b"<html>", "500 Oops", Content_Type="text/html")


@asynccontextmanager
async def web_tools(reply: Callable[[Connection, dict[str, Any]], Awaitable[None]]) -> AsyncIterator[ToolServer]:
    async with web_server(over_http(reply)) as web:
        start = ToolServerStart("", "web", "", url=web.url("/mcp"), headers={"X-Token": "t-123"})
        with anyio.fail_after(20):
            async with tool_server(start) as tools:
                yield tools


async def test_a_server_at_a_url_is_called_with_its_headers() -> None:
    async with web_tools(good) as web:
        assert (await web.connect(ConnectMcp("web"))).title == "web"
        assert (await web.call_tool(call())).content == [{"type": "text", "text": "t-123"}]


async def many_parts(connection: Connection, message: dict[str, Any]) -> None:
    await connection.answer(b"{}," * 1_000_000, Content_Type="application/json")


async def many_parts_of_an_event(connection: Connection, message: dict[str, Any]) -> None:
    await connection.answer(b"data: " + b"{}," * 1_000_000 + b"\n\n", Content_Type="text/event-stream")


def test_events_are_counted_one_by_one() -> None:
    meter = ContainerMeter()
    for _ in range(MAX_MESSAGE_CONTAINERS // 50):
        meter.feed_events(b"[" * 50 + b"\n\n" + b"{" * 50)
    with pytest.raises(LimitExceeded):
        meter.feed_events(b"[" * MAX_MESSAGE_CONTAINERS + b"\n\n")


async def compressed(connection: Connection, message: dict[str, Any]) -> None:
    """What takes 1,000 times as much once it is decompressed."""
    body = gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}')
    await connection.answer(body, Content_Type="application/json", Content_Encoding="gzip")


async def no_end_of_notes(connection: Connection, message: dict[str, Any]) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while True:
        await connection.send(b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\n' * 500)


@pytest.mark.parametrize(
    "reply",
    [
        endless_json, endless_event, elsewhere, no_server, many_parts, many_parts_of_an_event, compressed, no_end_of_notes,
    ],
)  # fmt: skip
async def test_a_server_at_a_url_that_lies_is_a_typed_error(
    reply: Callable[[Connection, dict[str, Any]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each takes the client a millisecond to read.
    monkeypatch.setattr("inferd_runtime.server.egress.mcp_streams.MESSAGES_PER_MINUTE", 1000)
    with pytest.raises((Unavailable, LimitExceeded, InvalidRequest)) as caught:
        async with web_tools(reply) as web:
            await web.call_tool(call(seconds=10.0))
    assert caught.value.detail.get("limit") != "mcp_call_s"  # what refuses it is not its time


async def test_a_server_that_asks_for_a_wait_without_end_is_lost() -> None:
    async def answer(connection: Connection) -> None:
        if connection.head.startswith("GET"):
            await connection.answer(b"retry: 1" + b"0" * 400 + b"\n\n", Content_Type="text/event-stream")
            return
        message = json.loads(await connection.reader.readexactly(int(connection.header("Content-Length") or 0)))
        reply = {"jsonrpc": "2.0", "id": message.get("id", 0), "result": greeting(message) if "id" in message else {}}
        await connection.answer(json.dumps(reply).encode(), Content_Type="application/json", Mcp_Session_Id="1")

    with pytest.raises(Unavailable, match="is lost"):
        async with web_server(answer) as web, tool_server(ToolServerStart("", "web", "", url=web.url("/mcp"))):
            await anyio.sleep_forever()


def test_a_call_that_a_server_does_not_read_ends_before_its_process_is_taken_for_hung() -> None:
    """Its client goes on for a while behind the call's time; the process, once ended, took all other calls with it."""
    assert MARGIN_SECONDS > jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT + 1


async def structured(connection: Connection, message: dict[str, Any]) -> None:
    await reply_json(connection, message, {"content": [], "structuredContent": {"a": "b"}})


ODD_RESULT_SCHEMAS = [
    {"properties": {"a": {"pattern": "a{99999999999999999999}"}}},
    {"$ref": "#/type/0"},
    {"$schema": "http://json-schema.org/draft-03/schema#", "extends": {"$ref": "file:///nowhere"}},
    {"$ref": "#"},
    {"$id": "http://[::", "$ref": "x"},
]


@pytest.mark.parametrize("schema", ODD_RESULT_SCHEMAS, ids=str)
async def test_a_schema_of_results_that_fails_in_the_client_is_the_servers_fault(schema: dict[str, Any]) -> None:
    tool = {**lying_tool_server.ECHO, "outputSchema": {"type": "object", **schema}}
    answer = over_http(structured, tool)
    async with web_server(answer) as web, tool_server(ToolServerStart("", "web", "", url=web.url("/mcp"))) as tools:
        with pytest.raises(Unavailable, match="no result of its kind"):
            await tools.call_tool(call())


def many(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that looks at a value 2 ** 40 times."""
    twice = {f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(40)}
    return {"$defs": {**twice, "d40": schema}, "$ref": "#/$defs/d0"}


ENDLESS_CHECKS = {
    "backtracks": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, "a" * 60 + "b"),
    "names_backtrack": ({"patternProperties": {"^(.*,)*x$": False}, "required": ["," * 60]}, ""),
    "compares_all": ({"properties": {"a": {"uniqueItems": True}}}, [{"n": number} for number in range(20_000)]),
    "refers_twice": (many({"required": ["a"]}), "a"),
}


@pytest.mark.parametrize("kind", ENDLESS_CHECKS)
async def test_a_schema_of_results_that_takes_for_ever_to_check_ends_its_own_call_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other calls of the tenant ended with the process, which was taken for hung."""
    monkeypatch.setattr(mcp_process, "CHECK_SECONDS", 0.05)
    schema, value = ENDLESS_CHECKS[kind]
    tools = [
        lying_tool_server.ECHO,
        {**lying_tool_server.ECHO, "name": "endless", "outputSchema": {"type": "object", **schema}},
    ]

    async def reply(connection: Connection, message: dict[str, Any]) -> None:
        named = {"," * 60: value} if kind == "names_backtrack" else {"a": value}
        await reply_json(connection, message, {"content": [], "structuredContent": named})

    async def refused(web: ToolServer) -> None:
        with pytest.raises(LimitExceeded) as caught:
            await web.call_tool(call("endless"))
        assert caught.value.detail["limit"] == "mcp_check_s"

    answer = over_http(reply, *tools)
    with anyio.fail_after(20):
        async with (
            web_server(answer) as server,
            tool_server(ToolServerStart("", "web", "", url=server.url("/mcp"))) as web,
        ):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(refused, web)
                assert (await web.call_tool(call())).structured
            await refused(web)


async def test_between_two_checks_of_a_servers_tools_other_calls_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen lists that came at once were checked at once: calls whose time was up meanwhile were taken for hung."""
    turns, checked_at = 0, []

    def check(offered: Any) -> McpTools:
        checked_at.append(turns)
        return McpTools([])

    monkeypatch.setattr(mcp_process, "kept_tools", check)
    async with server() as liar, anyio.create_task_group() as tasks:
        tools, ready = await liar._session.list_tools(), anyio.Event()

        async def at_once(**page: Any) -> Any:
            await ready.wait()
            return tools

        monkeypatch.setattr(liar._session, "list_tools", at_once)
        for _ in range(4):
            tasks.start_soon(liar.list_tools, ListMcpTools("liar"))
        await anyio.wait_all_tasks_blocked()
        ready.set()
        while len(checked_at) < 4:
            await anyio.lowlevel.checkpoint()
            turns += 1
    assert len(set(checked_at)) == 4


def test_schemas_whose_patterns_take_long_to_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd_runtime.server.egress.mcp_limits.CHECK_SECONDS", 0.05)
    patterns = {f"p{number}": {"pattern": f"(?i)[\u0100-\uffff{number}]"} for number in range(500)}
    with pytest.raises(LimitExceeded) as refused:
        kept_tools([{"name": "slow", "inputSchema": {"type": "object", "properties": patterns}}])
    assert refused.value.detail["limit"] == "mcp_check_s"


async def test_a_server_that_ends_its_streams_is_not_asked_for_them_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferd_runtime.server.egress.mcp_streams.MESSAGES_PER_MINUTE", 100)
    asked = 0

    async def answer(connection: Connection) -> None:
        nonlocal asked
        asked += 1
        await connection.answer(b"retry: 0\nid: 1\ndata:\n\n", Content_Type="text/event-stream")

    with pytest.raises((Unavailable, LimitExceeded)):
        async with web_server(answer) as web, tool_server(ToolServerStart("", "web", "", url=web.url("/mcp"))):
            pass
    assert 0 < asked <= 110
