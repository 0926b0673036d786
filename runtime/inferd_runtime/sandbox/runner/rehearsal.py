"""Runs of small programs while the component is built, on a host that answers everything at once.

A snapshot taken after them holds what first runs make: caches, specialised bytecode, warm free lists. That is processor time
that no run spends again, and about an eighth of the memory pages that a run would write to for the first time.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import copy_context
from typing import Any

from inferd.protocol import OPERATIONS
from inferd.protocol.codec import reply_shape
from inferd_runtime.sandbox.runner.entry import Runner, RunOutcome

ROUNDS = 20
MODEL = {"name": "m", "vocab_size": 9, "max_context": 99, "page_size": 16, "eos_tokens": [0], "fingerprint": ""}
REPLIES: dict[str, dict[str, Any]] = {
    "Models": {"models": [MODEL]},
    "Tokens": {"tokens": [1, 2]},
    "Text": {"text": "{}"},
    "ContextState": {"context": 1, "length": 2, "pending": 1},
    "GenerationStarted": {"generation": 1, "position": 2},
    "Steps": {"steps": [{"tokens": [1, 2], "text": "{}", "joined": 2}], "finish": "stop", "usage": [{"tokens": 2}]},
    "ForwardResult": {"rows": [{"index": 0, "token": 1}], "length": 3},
    "Received": {"message": {"a": [1]}},
}

ASYNCIO = """
import asyncio
from dataclasses import dataclass

@dataclass
class Answer:
    texts: list[str]
    count: int = 0

async def double(number):
    await asyncio.sleep(0.000001)
    return number * 2

async def main(text: str, count: int = 2, scale: float = 1.0, flag: bool = False, names: list[str] = []) -> Answer:
    print(text, flush=True)
    async with asyncio.timeout(9), asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(n)) for n in range(count)]
    await asyncio.gather(*(double(n) for n in range(count)))
    return Answer([f"{task.result()}" for task in tasks], count)
"""
GENERATION = """
from dataclasses import dataclass
from inferd import Context, JsonSchema, Sampler, session

@dataclass
class Record:
    names: list[str] | None = None

async def main(text: str):
    await session.send({"text": text})
    received = await session.receive()
    async with Context() as context:
        context.system("a").user(text)
        answer = await context.generate(Sampler.argmax(), max_tokens=4).collect_text()
        context.append([1, 2])
        await context.flush()
        tokens = await context.generate(Sampler.argmax().biased({1: -1.0}), max_tokens=4, stop=["."]).collect_tokens()
        record = await context.generate(Sampler.argmax(), max_tokens=4, constrain=JsonSchema(Record)).collect_json()
        other = await context.fork()
        async for step in other.append("b").generate(Sampler.top_p(0.7, 0.9), max_tokens=4, system_speculation=True):
            pass
        await other.release()
    return {"answer": str(answer), "received": received, "tokens": tokens, "names": record.names}
"""
FAILURE = """
def main(text: str):
    return {}["missing"]
"""
PROGRAMS = {"asyncio": ASYNCIO, "generation": GENERATION, "failure": FAILURE, "syntax": "def main(:"}


class AnsweringHost:
    """A host that has a made-up reply for every operation as soon as it is asked."""

    def __init__(self) -> None:
        self._tickets = 0
        self._answers: list[list[Any]] = []

    def submit(self, op: str, arguments: str) -> int:
        """Answer the operation."""
        self._tickets += 1
        self._answers.append([self._tickets, 1, REPLIES.get(OPERATIONS[op].reply.__name__, {})])
        return self._tickets

    def wait(self, timeout_ms: int) -> str:
        """Hand out the answers."""
        answers, self._answers = self._answers, []
        return json.dumps(answers)

    def ask(self, op: str, arguments: str, timeout_ms: int) -> str:
        """Answer the operation, and hand out the answers."""
        return f"[{self.submit(op, arguments)},{self.wait(timeout_ms)}]"

    def cancel(self, ticket: int) -> None:
        """Do nothing: no operation is ever open."""

    def log(self, target: str, text: str) -> None:
        """Drop the text."""

    def file(self, path: str) -> str:
        """Return nothing: there are no packages."""
        return ""

    def code(self, path: str) -> str:
        """Return nothing: every module is compiled."""
        return ""

    def keep(self, code: str) -> None:
        """Keep nothing."""


def rehearse(rounds: int = ROUNDS) -> dict[str, RunOutcome]:
    """Run every program ``rounds`` times; returns how each ended the last time. What all replies consist of is looked up, too."""
    for operation in OPERATIONS.values():
        reply_shape(operation.reply)
    return {name: [_run(name, text) for _ in range(rounds)][-1] for name, text in PROGRAMS.items()}


def _run(name: str, text: str) -> RunOutcome:
    bundle = {"name": name, "files": {"main.py": text}, "entry": "main.py"}
    runner = Runner(AnsweringHost())
    with left_as_found(), redirect_stdout(runner.streams.stdout):
        return copy_context().run(runner.run, json.dumps(bundle), json.dumps({"text": "hello"}))


@contextmanager
def left_as_found() -> Iterator[None]:
    """Undo what running a program leaves behind: its modules, where they are found, and their sources."""
    modules, finders, hooks, lines = set(sys.modules), list(sys.meta_path), list(sys.path_hooks), dict(linecache.cache)
    try:
        yield
    finally:
        sys.meta_path[:], sys.path_hooks[:] = finders, hooks
        for name in set(sys.modules) - modules:
            del sys.modules[name]
        linecache.cache.clear()
        linecache.cache.update(lines)
