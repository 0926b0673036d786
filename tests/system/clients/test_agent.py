"""Tools on a real server: the shipped agent in its sandbox, and a script whose own functions the model calls."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import inferd
from inferd import Context
from inferd.protocol import GetUsage, Usage
from inferd.tools import ToolAnswer
from inferd.transport import current_transport

from .conftest import ROOT, TOKEN, LiveServer


def test_the_agent_calls_a_tool_and_reads_its_result(server: LiveServer) -> None:
    server.upload((ROOT / "inferlets" / "agent" / "main.py").read_text(), "agent")
    arguments = {"task": "How much is 2 + 3?", "tool_choice": "required", "max_tokens": 64}
    with server.http() as client:
        run = client.post("/v1/runs", json={"program": "agent", "arguments": arguments}).json()["id"]
        client.get(f"/v1/runs/{run}/events")
        ended = client.get(f"/v1/runs/{run}").json()
    assert ended["error"] is None, ended["error"]
    name, written = ended["result"]["calls"][0].split(" ", 1)
    assert name in ("calculate", "count_letter")
    made, _, result = written.rpartition(" = ")
    assert set(json.loads(made)) == {"calculate": {"expression"}, "count_letter": {"word", "letter"}}[name]
    assert result


def test_a_script_gives_the_model_its_own_functions(server: LiveServer) -> None:
    asked: list[tuple[str, int]] = []

    @inferd.tool
    def order(item: Literal["lamp", "boat"], count: int) -> dict[str, int]:
        """Order an item.

        Args:
            item: what
            count: how many of them
        """
        asked.append((item, count))
        return {item: count}

    async def script() -> tuple[ToolAnswer, int, Usage]:
        async with inferd.connect(server.url.replace("http", "ws"), TOKEN), Context() as ctx:
            ctx.system("word " * 200).user("Order a boat.")
            answer = await ctx.run_tools([order], tool_choice="order", max_tokens=48, parallel=False).collect()
            used: Usage = await current_transport().call(GetUsage())
            return answer, ctx.length, used

    answer, length, used = asyncio.run(script())
    first = answer.results[0]
    assert asked[0] == tuple(json.loads(first.call.arguments).values())
    assert json.loads(first.text) == {asked[0][0]: asked[0][1]}
    assert answer.rounds >= 2
    # The system message alone has more than 200 tokens; a second round does not compute it again.
    assert used.prompt_tokens < length + 200
