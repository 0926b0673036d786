"""Runs of tools under anything at once: calls that return, raise, hang or are left, limits, and cancellation at any moment.

Whatever happens, the context then holds the conversation as the template writes it, every call with its result, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from session_runtime import CUE, SayingDriver, SessionRuntime
from tiers import examples

from inferd import Context, InferdError, Sampler
from inferd.calls.dialogue import shared_length
from inferd.protocol import Detokenize
from inferd.tools import ToolAnswer, ToolResult, tool

KINDS = ("fine", "fails", "hangs", "slow", "much", "cancels", "gone")
CALLS = st.lists(st.sampled_from(KINDS), max_size=3)


def written(kind: str) -> str:
    return (
        f"<tool_call>\n{json.dumps({'name': 'act', 'arguments': {'kind': kind}}, separators=(',', ':'))}\n</tool_call>"
    )


@tool
async def act(kind: str) -> str:
    """Do something.

    Args:
        kind: what
    """
    if kind == "fails":
        raise ValueError("<end>")
    if kind == "hangs":
        await asyncio.Event().wait()
    if kind == "cancels":
        raise asyncio.CancelledError
    if kind == "gone":
        return await (await Context().fork()).generate(Sampler.argmax(), max_tokens=1).collect_text()
    await asyncio.sleep(0)
    return "x" * (500 if kind == "much" else 3) + "<turn>"


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "says": [
            draw(st.sampled_from(["", "Hm. "])) + "\n".join(map(written, draw(CALLS)))
            for _ in range(draw(st.integers(1, 4)))
        ]
        + ["Done."],
        "options": {
            "max_rounds": draw(st.integers(1, 4)),
            "max_calls": draw(st.integers(1, 5)),
            "max_result": 100,
            "timeout": 0.01,
            "parallel": draw(st.booleans()),
            "on_error": draw(st.sampled_from(["tell", "tell", "raise"])),
            "tool_choice": draw(st.sampled_from(["auto", "required", "none"])),
        },
        "left_at": draw(st.one_of(st.none(), st.integers(0, 80))),
        "cancelled_at": draw(st.one_of(st.none(), st.integers(0, 120))),
    }


def speaker(says: list[str]) -> SayingDriver:
    """A model that says the texts one after the other."""

    def answer(prompt: list[int]) -> bytes:
        spoken = sum(prompt[at : at + len(CUE)] == CUE for at in range(len(prompt)))
        return says[min(spoken, len(says) - 1)].encode()

    return SayingDriver(answer, room=8192)


class Cut(SessionRuntime):
    """Cancels ``task`` at a certain request."""

    task: asyncio.Task[Any] | None = None
    cancelled_at: int | None = None

    async def call(self, request: Any) -> Any:
        if self.task is not None and len(self.requests) == self.cancelled_at:
            self.cancelled_at = None
            self.task.cancel()
        return await super().call(request)


async def use(ctx: Context, script: dict[str, Any]) -> list[Any]:
    """Use the tools as the script says; returns the events."""
    events: list[Any] = []
    async with ctx.run_tools([act], max_tokens=400, **script["options"]) as run:
        async for event in run:
            events.append(event)
            if len(events) - 1 == script["left_at"]:
                break
    return events


async def check(script: dict[str, Any], runtime: Cut) -> None:
    async with Context().user("Go <end> on.") as ctx:
        runtime.task = asyncio.ensure_future(use(ctx, script))
        with contextlib.suppress(InferdError, ValueError, asyncio.CancelledError):
            events = await runtime.task
            assert script["left_at"] is not None or isinstance(events[-1], ToolAnswer)
            ended = [event for event in events if isinstance(event, ToolResult)]
            assert len({result.call.id for result in ended}) == len(ended)
            assert len(ended) <= script["options"]["max_calls"]
        assert runtime.task.done()
        runtime.task = None
        text = (await runtime.call(Detokenize(await ctx.tokens(), special=True))).text
        turns = text.split("<turn>")[1:]
        results = sum(turn.startswith("tool:") for turn in turns)
        if script["options"]["tool_choice"] == "none":
            assert results == 0  # what looks like a call is text
        else:
            assert text.count("<tool_call>") == results
        # It goes on, with tools and without, behind what it held.
        await ctx.user("And?").run_tools([act], tool_choice=script["options"]["tool_choice"], timeout=0.01).collect()
        more = (await runtime.call(Detokenize(await ctx.tokens(), special=True))).text
        assert "<turn>user:And?<end>" in more
        common = shared_length(list(text.encode()), list(more.encode()))
        assert common == len(text.encode()) or not text.startswith("<turn>tools")


def run_script(script: dict[str, Any]) -> None:
    runtime = Cut(speaker(script["says"]))
    runtime.cancelled_at = script["cancelled_at"]
    with runtime:
        asyncio.run(check(script, runtime))


@settings(max_examples=examples(12), deadline=None)
@given(scripts())
def test_whatever_happens_the_conversation_stays_whole(script: dict[str, Any]) -> None:
    run_script(script)


@pytest.mark.parametrize("at", range(20, 46))
def test_a_cancellation_while_a_run_ends_leaves_the_conversation_whole(at: int) -> None:
    many = "\n".join(['<tool_call>\n{"name":"act","arguments":{"kind":"fine"}}\n</tool_call>'] * 3)
    options = {"max_rounds": 1, "max_calls": 2, "timeout": 0.01, "tool_choice": "auto"}
    run_script({"says": [many, "Done."], "options": options, "left_at": None, "cancelled_at": at})


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(scripts())
def test_whatever_happens_at_length(script: dict[str, Any]) -> None:
    run_script(script)


@pytest.mark.parametrize("at", [5, 9, 12, 15, 18])
def test_a_run_that_is_cancelled_leaves_whole_rounds(at: int) -> None:
    script = {"left_at": None, "options": {"timeout": 0.05}}
    runtime = Cut(speaker([written("fine"), written("hangs"), "Done."]))
    runtime.cancelled_at = at

    async def program() -> str:
        async with Context().user("Go.") as ctx:
            runtime.task = asyncio.ensure_future(use(ctx, script))
            with contextlib.suppress(asyncio.CancelledError):
                await runtime.task
            text: str = (await runtime.call(Detokenize(await ctx.tokens(), special=True))).text
            return text

    with runtime:
        text = asyncio.run(program())
    assert text.count("<tool_call>") == text.count("<turn>tool:")
    assert text.endswith("<end>")
