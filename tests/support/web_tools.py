"""A server of tools over streamable HTTP, byte for byte: it greets, lists what it is given, and answers calls by a function."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from web_servers import Answer, Connection


def greeting(message: dict[str, Any]) -> dict[str, Any]:
    version = message["params"]["protocolVersion"]
    return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "web", "version": "1"}}


def over_http(reply: Callable[[Connection, dict[str, Any]], Awaitable[None]], *tools: dict[str, Any]) -> Answer:
    """A server of tools that greets, and answers calls by a function."""

    async def answer(connection: Connection) -> None:
        if connection.head.startswith("POST"):
            body = await connection.reader.readexactly(int(connection.header("Content-Length") or 0))
            message = json.loads(body)
            if message["method"] == "initialize":
                await reply_json(connection, message, greeting(message))
            elif message["method"] == "tools/call":
                await reply(connection, message)
            elif "id" in message:
                await reply_json(connection, message, {"tools": list(tools)})
            else:
                await connection.answer(b"", "202 Accepted")
        else:
            await connection.answer(b"", "405 Method Not Allowed")

    return answer


async def reply_json(connection: Connection, message: dict[str, Any], result: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    await connection.answer(body, Content_Type="application/json")
