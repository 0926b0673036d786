"""A model that is divided between ranks, as one driver: rank 0 leads, the others follow.

Every rank has a driver over its own part of the model (:mod:`~inferd_runtime.engine.drivers.parallel_parts`), and pages for its
own heads. :class:`LeadingDriver` sends each call to the others, does its own part, and takes one answer from each before
it returns. So between two calls all ranks have done the same, and rank 0 alone plans, samples, and knows sequences.

**In step or not at all.** A call that fails in every rank alike, and before the model's first reduction, has changed nothing and
is raised, like any driver's. Whatever else goes wrong (a rank that has ended or does not answer, an exception inside the model,
one rank that fails where another does not) would leave ranks that wait for each other, or whose caches differ, which nobody
would see in a text: then ``lost`` ends the process.

Commands go over a channel of their own, because a rank that waits for the next one may wait for hours, and a collective may not.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import NoReturn, TypeVar

import msgspec
import numpy as np

from inferd.protocol import InferdError, InvalidRequest, Unavailable
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.drivers.parallel_commands import (
    CheckPages,
    Command,
    CommandDone,
    CopyPages,
    Failed,
    ForwardCommand,
    Loaded,
    MoveTokens,
    RankReply,
    ReadPages,
    StepCommand,
    Stop,
    WritePages,
    decode_command,
    decode_reply,
    encode,
    page_rows,
)
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, Outputs, PageData
from inferd_runtime.models.lora.files import AdapterSize
from inferd_runtime.models.parallel import TIMEOUT_S, WatchedPass

T = TypeVar("T")
Reply = TypeVar("Reply", CommandDone, Loaded)
EndProcess = Callable[[InferdError], NoReturn]
SLICE_BYTES = 256 << 20


class LeadingDriver:
    """Rank 0 of a divided model. ``own`` is its part of it, with ``watched`` as the pass.

    A page is the parts of all ranks behind each other, rank 0's first; so ``kv_layout`` names the number of ranks. Pages go over
    the channels at most ``slice_bytes`` of each rank at a time, or one page: a message holds less than 4 GiB, and a long context
    is more. The channels, socket pairs, get a time-out of ``timeout_s`` for what they take and give: a rank that hangs would else
    block this one, as soon as a message is larger than a socket's buffer. ``lost`` must not return. Owned by one thread.
    """

    def __init__(
        self,
        own: Driver,
        watched: WatchedPass,
        followers: Sequence[Connection],
        lost: EndProcess,
        timeout_s: float = TIMEOUT_S,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.vocab_size = own.vocab_size
        self.page_size = own.page_size
        self.pages = own.pages
        self.max_context = own.max_context
        ranks = 1 + len(followers)
        self.page_bytes = own.page_bytes * ranks
        self.token_bytes: Sequence[int] = list(own.token_bytes) * ranks
        self.kv_layout = f"{own.kv_layout}/{ranks} ranks"
        self._own = own
        self._watched = watched
        self._followers = followers
        self._lost = lost
        self._timeout_s = timeout_s
        self._slice_pages = max(1, slice_bytes // own.page_bytes)
        for follower in followers:
            _limit_waits(follower, timeout_s)

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`~inferd_runtime.engine.driver.Driver`. Raises ValueError for what cannot be divided."""
        return self._all(ForwardCommand.of(batch), lambda: self._own.forward(batch))[0]

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        if copies:
            self._all(CopyPages.of(copies), lambda: self._own.copy_pages(copies))

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        command = MoveTokens(list(sources), list(targets))
        self._all(command, lambda: self._own.move_tokens(sources, targets))

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """Return the parts of all ranks: uint8[n, page_bytes]."""
        read = np.empty((len(pages), self.page_bytes), np.uint8)
        for part in self._slices(len(pages)):
            self._read_slice(pages[part], read[part])
        return read

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Give every rank its part of what :meth:`read_pages` gave."""
        for part in self._slices(len(pages)):
            self._write_slice(pages[part], data[part])

    def bearable(self, data: PageData) -> bool:
        """See :class:`~inferd_runtime.engine.driver.Driver`: in every rank."""
        return all(self._bears_slice(data[part]) for part in self._slices(len(data)))

    def adapter_reader(self) -> NoReturn:
        """Raises InvalidRequest: an adapter's weights would have to be divided like those that they change."""
        raise InvalidRequest("a model that is divided between ranks (--tensor-parallel) is served without adapters")

    def load_adapter(self, key: str, read: NoReturn) -> AdapterSize:
        """Is never called: nothing was read."""
        raise AssertionError(key)

    def unload_adapter(self, key: str) -> None:
        """Do nothing: there are no adapters."""

    def close(self) -> None:
        """Let the followers end."""
        for follower in self._followers:
            try_send(follower, encode(Stop()))

    def _slices(self, pages: int) -> Iterator[slice]:
        """Return slices of so many pages, each as many as one message may hold."""
        return (slice(first, first + self._slice_pages) for first in range(0, pages, self._slice_pages))

    def _read_slice(self, pages: Sequence[int], read: PageData) -> None:
        """Read pages of all ranks into ``read`` uint8[n, page_bytes]."""
        mine, answers = self._all(ReadPages(list(pages)), lambda: self._own.read_pages(pages))
        size = self._own.page_bytes
        read[:, :size] = mine
        for rank, answer in enumerate(answers, 1):
            read[:, rank * size : (rank + 1) * size] = page_rows(answer.data, size)

    def _write_slice(self, pages: Sequence[int], data: PageData) -> None:
        mine, *others = self._parts(data)
        commands = [WritePages(list(pages), part.tobytes()) for part in others]
        self._each(commands, lambda: self._own.write_pages(pages, mine))

    def _bears_slice(self, data: PageData) -> bool:
        mine, *others = self._parts(data)
        commands = [CheckPages(part.tobytes()) for part in others]
        fine, answers = self._each(commands, lambda: self._own.bearable(mine))
        return fine and all(answer.holds for answer in answers)

    def _parts(self, data: PageData) -> list[PageData]:
        """Return page data, divided by rank."""
        return [np.ascontiguousarray(part) for part in np.split(data, 1 + len(self._followers), axis=1)]

    def _all(self, command: Command, own: Callable[[], T]) -> tuple[T, list[CommandDone]]:
        return self._each([command] * len(self._followers), own)

    def _each(self, commands: Sequence[Command], own: Callable[[], T]) -> tuple[T, list[CommandDone]]:
        """Send one command to each follower and do rank 0's own part. Returns its result and the followers' answers."""
        payloads = [encode(command) for command in commands]  # before one is sent: what cannot be said fails in step
        for follower, payload in zip(self._followers, payloads, strict=True):
            self._send(follower, payload)
        with ExitStack() as stack:
            stack.push(self._check_shared)
            mine = own()
        return mine, self.answers()

    def answers(self) -> list[CommandDone]:
        """Take an answer from each follower."""
        answers = [self._answer(follower) for follower in self._followers]
        for rank, answer in enumerate(answers, 1):
            if not isinstance(answer, CommandDone):
                self._lost(Unavailable(f"rank {rank} of the model fell out of step: {answer}", process="follower"))
        return [answer for answer in answers if isinstance(answer, CommandDone)]

    def _send(self, follower: Connection, payload: bytes) -> None:
        try:
            follower.send_bytes(payload)
        except BlockingIOError:
            self._lost(Unavailable(f"a rank of the model took nothing for {self._timeout_s:g} s", process="follower"))
        except OSError as error:
            self._lost(Unavailable(f"a rank of the model has ended: {error!r}", process="follower"))

    def _check_shared(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Return if every rank failed like this one, before any reduction, or if this one did not."""
        if not isinstance(error, Exception):
            return
        if self._watched.broken:
            self._lost(Unavailable(f"the model's pass failed in one of its ranks: {error!r}", process="engine"))
        others = [self._answer(follower) for follower in self._followers]
        if any(answer != Failed(repr(error)) for answer in others):
            self._lost(Unavailable(f"rank 0 of the model fell out of step: {error!r}, {others}", process="engine"))

    def _answer(self, follower: Connection) -> RankReply:
        try:
            if follower.poll(self._timeout_s):
                return decode_reply(follower.recv_bytes())
        except BlockingIOError:
            self._lost(Unavailable("a rank of the model stopped within its answer", process="follower"))
        except (EOFError, OSError, msgspec.MsgspecError) as error:
            self._lost(Unavailable(f"a rank of the model has ended: {error!r}", process="follower"))
        self._lost(Unavailable(f"a rank of the model gave no answer for {self._timeout_s:g} s", process="follower"))


def follow(driver: Driver, watched: WatchedPass, channel: Connection) -> None:
    """Carry out rank 0's commands until it says stop or has ended.

    Raises what the model's pass raises: rank 0 waits in a reduction then, and only the end of this process frees it.
    """
    while True:
        try:
            command = decode_command(channel.recv_bytes())
        except (EOFError, ConnectionError):
            return
        if isinstance(command, Stop):
            return
        begun = isinstance(driver, CudaDriver) and isinstance(command, StepCommand | ForwardCommand)
        try:
            reply = encode(_carry_out(driver, command))
        except Exception as error:
            if watched.broken or begun:
                raise
            reply = encode(Failed(repr(error)))
        if not try_send(channel, reply):
            return


def _carry_out(driver: Driver, command: Command) -> CommandDone:
    match command:
        case StepCommand() if isinstance(driver, CudaDriver):
            driver.repeat(command.shape, command.block, command.columns, command.moves)
        case ForwardCommand() if isinstance(driver, CudaDriver):
            driver.plain.forward(command.batch())
        case ForwardCommand():
            driver.forward(command.batch())
        case CopyPages():
            driver.copy_pages([PageCopy(*copy) for copy in command.copies])
        case MoveTokens():
            driver.move_tokens(command.sources, command.targets)
        case ReadPages():
            return CommandDone(data=driver.read_pages(command.pages).tobytes())
        case WritePages():
            driver.write_pages(command.pages, page_rows(command.data, driver.page_bytes))
        case CheckPages():
            return CommandDone(holds=driver.bearable(page_rows(command.data, driver.page_bytes)))
        case _:
            raise ValueError(f"{type(command).__name__} is no command for a cache that is there")
    return CommandDone()


def take_reply(channel: Connection, kind: type[Reply], rank: int, seconds: float) -> Reply:
    """Return a follower's answer before there is a driver. Raises Unavailable if it is another, or none comes."""
    try:
        reply = decode_reply(channel.recv_bytes()) if channel.poll(seconds) else None
    except (EOFError, OSError) as error:
        raise Unavailable(f"rank {rank} has ended: {error!r}", process="follower") from error
    if not isinstance(reply, kind):
        raise Unavailable(f"rank {rank} did not load its part of the model: {reply}", process="follower")
    return reply


def try_send(channel: Connection, payload: bytes) -> bool:
    """Send, and return whether the other end is still there."""
    try:
        channel.send_bytes(payload)
    except OSError:
        return False
    return True


def _limit_waits(channel: Connection, seconds: float) -> None:
    """Have reads and writes that go no further for so long raise BlockingIOError. The channel is a socket."""
    timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    end = socket.socket(fileno=channel.fileno())
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        end.setsockopt(socket.SOL_SOCKET, option, timeval)
    end.detach()
