"""Follows a run on the command line, and sends it what is typed once it waits for a message."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.abc

from inferd.client import EventsDropped, StreamEvent
from inferd.protocol import InferdError, shown
from inferd.protocol.files import FileHead
from inferd_runtime.cli.answers import answer_as
from inferd_runtime.cli.boundary import EXIT_INTERRUPTED
from inferd_runtime.cli.output import say
from inferd_runtime.cli.program_command import TalkOptions, message_of
from inferd_runtime.cli.run_screen import RunScreen

READ_BYTES = 64 << 10
STDIN = 0


class TypedLines:
    """Lines of standard input, which a thread begins to read at the first call of :meth:`next`, not before.

    The thread waits in a system call that nothing interrupts, and ends with the process.
    """

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=16)
        self._begun = self._ended = False
        self._loop = asyncio.get_running_loop()

    async def next(self) -> str | None:
        """Return the next line without its end; None once there are no more."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._read, name="standard input", daemon=True).start()
        line = None if self._ended else await self._lines.get()
        self._ended = line is None
        return line

    def _read(self) -> None:
        parts: list[bytes] = []
        while data := _read_some():
            *whole, rest = data.split(b"\n")
            for line in whole:
                self._put(b"".join([*parts, line]).decode(errors="replace").removesuffix("\r"))
                parts.clear()
            parts.append(rest)
        if last := b"".join(parts):
            self._put(last.decode(errors="replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


def _read_some() -> bytes:
    try:
        return os.read(STDIN, READ_BYTES)
    except OSError:  # it is closed, or its terminal is gone
        return b""


class FollowedRun(Protocol):
    """What a conversation needs of a run: see :class:`inferd.client.RunHandle`."""

    id: str

    @property
    def record(self) -> dict[str, Any]:
        """The run as it was shown last."""

    async def refresh(self) -> dict[str, Any]:
        """Return the run as it is now."""

    def events(self, start: int = 0) -> AsyncGenerator[StreamEvent]:
        """Yield the run's events."""

    async def send(self, value: Any) -> None:
        """Hand over a message."""

    async def end_messages(self) -> None:
        """Say that there are no more messages."""

    async def send_file(self, path: Path) -> None:
        """Hand over a file."""

    async def save_file(self, file: FileHead, folder: Path) -> Path:
        """Keep a file of the program's."""

    async def cancel(self) -> None:
        """Ask the run to end."""


class Conversation:
    """One run, followed until it is over. ``alone``: nobody else can send it anything."""

    def __init__(self, run: FollowedRun, screen: RunScreen, options: TalkOptions, *, alone: bool = False) -> None:
        self._run = run
        self._screen = screen
        self._options = options
        self._lines = TypedLines()
        self._alone = alone
        self._sent = anyio.Event()
        self._unanswered = 0
        self._interrupted = self._hinted = False

    async def follow(self, start: int = 0, live: int = 0) -> int:
        """Show the run from event ``start`` on, and answer where it waits at ``live`` or later; returns the exit code.

        The first Ctrl+C or SIGTERM cancels the run, a second one leaves at once.
        """
        code = 0
        async with anyio.create_task_group() as tasks:
            if self._options.cancels:
                self._heed_interrupt(tasks)
            tasks.start_soon(self._send_files, live)
            async with aclosing(shown_events(self._run, start)) as events:
                async for event in events:
                    ended = self._screen.show_json(event)
                    code = code if ended is None else ended
                    if event["type"] == "file":
                        await self._file(event.get("file"))
                    if event["type"] == "waiting" and event["index"] >= live:
                        tasks.start_soon(self._answer)
                    if event["type"] == "waiting_file":
                        tasks.start_soon(self._answer_for_file, event["index"])
            tasks.cancel_scope.cancel()
        return EXIT_INTERRUPTED if self._interrupted else code

    def _heed_interrupt(self, tasks: anyio.abc.TaskGroup) -> None:
        loop = asyncio.get_running_loop()

        def interrupt(number: signal.Signals) -> None:
            self._interrupted = number is signal.SIGINT
            loop.remove_signal_handler(number)  # the next one is Python's own
            tasks.start_soon(self._run.cancel)

        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a shell script
                loop.add_signal_handler(number, interrupt, number)

    async def _file(self, told: Any) -> None:
        """Keep a file of the program's, or list it."""
        file = answer_as(FileHead, told)
        what = f"{shown(file.name)}, {file.size} bytes"
        if self._options.files is None:
            say(f"[the program sent a file: {what}; --files DIR keeps it]", sys.stderr)
            return
        try:
            say(f"[{what}: {await self._run.save_file(file, self._options.files)}]", sys.stderr)
        except InferdError as error:
            say(f"[{what}: {error.message}]", sys.stderr)

    async def _send_files(self, live: int) -> None:
        """Send the files that were asked for. Where the program waits for one before that, it gets one of them."""
        for path in self._options.sends:
            try:
                await self._run.send_file(path)
            except InferdError as error:
                say(f"[{path} was not sent: {error.message}]", sys.stderr)
        self._unanswered = (await self._run.refresh())["next_event"] if self._options.sends else live
        self._sent.set()

    async def _answer_for_file(self, index: int) -> None:
        """Say that there are no more files, where nobody else can send one."""
        await self._sent.wait()
        if index < self._unanswered:
            return
        if not self._alone:
            say(f"[{self._run.id} waits for a file: inferd send {self._run.id} --file PATH]", sys.stderr)
            return
        say("[the program waits for a file, and there are no more: --send-file PATH sends one]", sys.stderr)
        with contextlib.suppress(InferdError):  # it is over, or was told before
            await self._run.end_messages()

    async def _answer(self) -> None:
        """Send the next line, or say that there is none. What goes wrong is told, and the run followed all the same."""
        reads = self._options.reads
        if not reads and not self._alone:
            self._hint(f"{self._run.id} waits for a message: inferd send {self._run.id} MESSAGE")
            return
        if reads and os.isatty(STDIN):
            self._hint("the program waits for a message: a line is one, Ctrl+D says that there are no more")
        line = await self._lines.next() if reads else None
        try:
            if line is None:
                await self._run.end_messages()
            else:
                await self._run.send(message_of(line, self._options.json_input))
        except InferdError as error:
            if self._run.record.get("finished_at") is None:
                say(f"[the message was not delivered: {error.message}]", sys.stderr)

    def _hint(self, text: str) -> None:
        if not self._hinted:
            self._hinted = True
            say(f"[{text}]", sys.stderr)


async def shown_events(run: FollowedRun, start: int = 0) -> AsyncGenerator[dict[str, Any]]:
    """Yield a run's events as the server sends them, with one of type ``dropped`` for those that are no longer kept."""
    while True:
        try:
            async with aclosing(run.events(start)) as events:
                async for event in events:
                    yield event.data
            return
        except EventsDropped as gap:
            start = gap.next
            yield dropped(start, gap.detail["count"])


def dropped(following: int, count: int) -> dict[str, Any]:
    """Return the event that stands for those before ``following`` that are gone."""
    return {"index": following - 1, "type": "dropped", "count": count}


def with_gap(events: list[StreamEvent]) -> list[dict[str, Any]]:
    """Return events as they are shown, with one for those before the first."""
    first = events[0].index if events else 0
    return [*([dropped(first, first)] if first else []), *(event.data for event in events)]
