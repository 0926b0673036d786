"""What programs that do real work cost: starting one, messages between two, programs that start others.

    python benchmarks/programs.py [--quick] [--only start,messages,launches,tools,network]

Prints what bounds each figure first, then the figures (medians of at least five rounds with their range), and one JSON line last.
Everything runs through the real processes, with one worker and the embedded model, which tool_round_trip_ms alone asks.

start_p50_ms, start_p99_ms   launch of a known program to its first line
messages_per_s               values through a topic from one sandboxed program to another: 256 tasks publish at a time
queue_messages_per_s         the same through a queue, by `pull_many`
one_by_one_per_s             values that one task publishes, each when the one before was taken
child_launch_p50_ms          `await inferd.launch(...)` of a known program, as its parent sees it
child_result_p50_ms          the same and the child's result
tool_round_trip_ms           from a whole call of a tool to the model's next text: the tool, its result in the template, the step
http_fetch_overhead_ms       a fetch of 1 KiB by a program, over the same by httpx in a plain script
mcp_call_p50_ms              a call of a tool of an MCP server that is a command
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch
from measure import figure, percentile
from named_options import listed, one_of
from programs_network import network, outside
from sandbox_latency import first_line
from sandbox_runtime import Place, open_place

from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.services.launches.launches import Launches
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.settings.settings import EngineSettings

HELLO = 'print("hello")\n\n\nasync def main() -> int:\n    return 1\n'
PUBLISH = """
import asyncio
from inferd import topic

async def main(count: int, together: int) -> int:
    while not await topic.publish("bench", -1):
        await asyncio.sleep(0.005)
    async def some(first: int) -> None:
        for number in range(first, count, together):
            await topic.publish("bench", {"number": number, "text": "some text"})
    await asyncio.gather(*(some(first) for first in range(together)))
    await topic.publish("bench", None)
    return count
"""
SUBSCRIBE = """
import time
from inferd import topic

async def main() -> list[float]:
    began, count = 0.0, 0
    async with topic.subscribe("bench") as values:
        async for value in values:
            if value is None:
                return [count, time.perf_counter() - began]
            if value != -1:
                began, count = began or time.perf_counter(), count + 1
"""
PUSH = """
import asyncio
from inferd import queue

async def main(count: int, together: int) -> int:
    async def some(first: int) -> None:
        for number in range(first, count, together):
            await queue.push("bench", {"number": number, "text": "some text"})
    await asyncio.gather(*(some(first) for first in range(together)))
    return count
"""
PULL = """
import time
from inferd import queue

async def main(count: int) -> list[float]:
    got, began = 0, 0.0
    while got < count:
        got += len(await queue.pull_many("bench"))
        began = began or time.perf_counter()
    return [got, time.perf_counter() - began]
"""
PARENT = """
import time
import inferd

async def main(count: int) -> list:
    launched, done = [], []
    for _ in range(count):
        start = time.perf_counter()
        child = await inferd.launch("hello")
        launched.append((time.perf_counter() - start) * 1e3)
        await child.result()
        done.append((time.perf_counter() - start) * 1e3)
    return [launched, done]
"""
AGENT = """
import time
import inferd
from inferd.chat import ToolCall

@inferd.tool
async def look(place: int) -> str:
    \"\"\"Look at a place.\"\"\"
    return "a boat"

async def main(count: int) -> list[float]:
    samples = []
    for number in range(count):
        async with inferd.Context() as ctx:
            ctx.system("Look at places. " * 20).user(f"What is at {number}?")
            called = 0.0
            async with ctx.run_tools([look], tool_choice="required", parallel=False, max_tokens=24) as run:
                async for event in run:
                    if isinstance(event, ToolCall):
                        called = time.perf_counter()
                    elif called and getattr(event, "text", "") and not hasattr(event, "is_error"):
                        samples.append((time.perf_counter() - called) * 1e3)
                        break
    return samples
"""
TOGETHER = 256
PARTS = ("start", "messages", "launches", "tools", "network")
ROUNDS = 5
PARENT_LIMITS = Limits(wall_s=3600.0, cpu_s=3600.0, memory_mb=1024)
Figures = dict[str, float]


def main() -> None:
    """Run the parts and print."""
    options = parse()
    torch.set_num_threads(1)
    ensure_runner()
    figures = asyncio.run(measured(options.only, options.quick))
    print(json.dumps({"benchmark": "programs", **figures}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--only", type=listed(one_of(PARTS)), default=list(PARTS), help="parts, separated by commas")
    return parser.parse_args()


async def measured(names: list[str], quick: bool) -> Figures:
    """Run the parts in one runtime."""
    parts: dict[str, Callable[[Place, bool], Awaitable[Figures]]] = {
        "start": starts, "messages": messages, "launches": launches, "tools": tool_calls,
    }  # fmt: skip
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, outside(Path(folder)) as reached:
        async with open_place(EngineSettings(threads=1), **reached.settings) as place:
            parts["network"] = lambda place, quick: network(place, reached.port, quick)
            place.runtime.services.join(Launches(place.runtime, place.library.find))
            for name in names:
                figures |= await parts[name](place, quick)
    return figures


async def starts(place: Place, quick: bool) -> Figures:
    """Launches, one after the other."""
    program = await place.upload("hello", HELLO)
    for _ in range(5):
        await first_line(place, program, time.perf_counter())
    samples = [await first_line(place, program, time.perf_counter()) for _ in range(60 if quick else 400)]
    print(f"start to first line, ms: {figure(samples)}, p99 {percentile(samples, 0.99):.1f}")
    return {"start_p50_ms": figure(samples).median, "start_p99_ms": percentile(samples, 0.99)}


async def messages(place: Place, quick: bool) -> Figures:
    """Values between two programs."""
    publish, subscribe = await place.upload("publish", PUBLISH), await place.upload("subscribe", SUBSCRIBE)
    push, pull = await place.upload("push", PUSH), await place.upload("pull", PULL)
    count = 2_000 if quick else 20_000
    alone = 60 if quick else 2_000
    topics = [await rate(place, subscribe, {}, publish, count, TOGETHER) for _ in range(ROUNDS)]
    queues = [await rate(place, pull, {"count": count}, push, count, TOGETHER) for _ in range(ROUNDS)]
    singles = [await rate(place, subscribe, {}, publish, alone, 1) for _ in range(ROUNDS)]
    print(f"values a second through a topic: {figure(topics)}")
    print(f"values a second through a queue: {figure(queues)}")
    print(f"values a second, one by one:     {figure(singles)}")
    medians = [figure(samples).median for samples in (topics, queues, singles)]
    return dict(zip(("messages_per_s", "queue_messages_per_s", "one_by_one_per_s"), medians, strict=True))


async def rate(
    place: Place, reader: Program, asked: dict[str, int], writer: Program, count: int, together: int
) -> float:
    """Values a second from the first that the reader gets to the last."""
    reading = place.launch(reader, **asked)
    writing = place.launch(writer, count=count, together=together)
    got, seconds = await result(reading)
    await result(writing)
    assert got == count, f"{got} of {count} values arrived"
    return count / seconds


async def launches(place: Place, quick: bool) -> Figures:
    """Children, one after the other."""
    await place.upload("hello", HELLO)
    parent = await place.upload("parent", PARENT)
    launched: list[float] = []
    done: list[float] = []
    for _ in range(ROUNDS):
        arguments = json.dumps({"count": 8 if quick else 60})
        some, ends = await result(place.runtime.launch(parent, arguments, limits=PARENT_LIMITS))
        launched, done = launched + some, done + ends
    print(f"launch of a child, ms:           {figure(launched)}, p99 {percentile(launched, 0.99):.1f}")
    print(f"launch of a child to result, ms: {figure(done)}, p99 {percentile(done, 0.99):.1f}")
    return {"child_launch_p50_ms": figure(launched).median, "child_result_p50_ms": figure(done).median}


async def tool_calls(place: Place, quick: bool) -> Figures:
    """Calls of a tool, each in a conversation of its own, whose first tokens are found computed."""
    program = await place.upload("agent", AGENT)
    await result(place.launch(program, count=2))
    samples = await result(place.launch(program, count=20 if quick else 100))
    print(f"a tool's round trip, ms:         {figure(samples)}, p99 {percentile(samples, 0.99):.1f}")
    return {"tool_round_trip_ms": figure(samples).median}


async def result(run: Run) -> list[float]:
    """What a run returned. Raises what it ended with."""
    ending = await run.wait()
    if ending.error is not None:
        raise ending.error.to_exception()
    value: list[float] = json.loads(ending.result or "null")
    return value


if __name__ == "__main__":
    main()
