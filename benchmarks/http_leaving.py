"""Clients that go away in the middle of an answer, and how long the engine goes on with it."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from dataclasses import dataclass

from http_clients import CONTENT, HttpClient, Question
from http_servers import OurServer
from sandbox_fleet import Client

TOKENS = 1500
BEFORE_LEAVING = 8
"""Chunks with text that each client reads first."""
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Leaving:
    """Milliseconds from the close to the answer that says that the engine has no job, and the engine's own between two chunks."""

    gone_ms: list[float]
    step_ms: float


async def leave(server: OurServer, clients: int, rounds: int) -> Leaving:
    """Have so many clients leave at once, over and over. Raises TimeoutError if a generation stays."""
    gone, steps = [], list[float]()
    numbers = itertools.count()
    for _ in range(rounds):
        readers = [HttpClient(server.direct) for _ in range(clients)]
        steps += await asyncio.gather(*(_read_some(each, next(numbers)) for each in readers))
        gone.append(1e3 * await _gone(server, readers))
    return Leaving(gone, 1e3 * statistics.median(steps))


async def _read_some(client: HttpClient, number: int) -> float:
    """Read the beginning of a long answer, and return the median seconds between two of its chunks."""
    times: list[float] = []
    question = Question(f"leaving {number}", TOKENS, "leaving")
    async for chunk in client.chunks(question):
        if CONTENT in chunk:
            times.append(time.perf_counter())
        if len(times) == BEFORE_LEAVING:
            break
    return statistics.median(after - before for before, after in itertools.pairwise(times))


async def _gone(server: OurServer, clients: list[HttpClient]) -> float:
    observer = Client(server.direct.url)  # a new connection: an idle one is closed in time
    if not server.jobs(observer):
        raise RuntimeError("the engine had no generation to end")
    start = time.perf_counter()
    for client in clients:
        client.leave()
    await asyncio.sleep(0)  # the loop closes the sockets in its next turn
    while server.jobs(observer):
        if time.perf_counter() - start > PATIENCE_SECONDS:
            raise TimeoutError("a generation went on without its client")
    return time.perf_counter() - start
