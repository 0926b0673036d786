"""What rank 0 tells the other ranks, and what they answer: plain data in msgpack, one answer for each command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from inferd_runtime.engine.drivers.buckets import StepBucket
from inferd_runtime.engine.drivers.build import DriverOptions
from inferd_runtime.engine.drivers.cuda_driver import StagedStep
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, Ids, PageData, Placement, Span


class PlacementData(msgspec.Struct, array_like=True):
    """A :class:`Placement`: int64[L] and bool[count, L]."""

    positions: bytes
    visible: bytes


class ForwardCommand(msgspec.Struct, tag="forward"):
    """Run a batch. Arrays int64; ``spans``: (first, count, start, pages)."""

    tokens: bytes
    positions: bytes
    slots: bytes
    logit_rows: bytes
    hidden_rows: bytes
    spans: list[tuple[int, int, int, list[int]]]
    placements: dict[int, PlacementData]

    @classmethod
    def of(cls, batch: Batch) -> ForwardCommand:
        """Return the command for a batch. Raises ValueError for one that this driver cannot run."""
        if any(span.adapter for span in batch.spans):
            raise ValueError("a batch under tensor parallelism has no adapters")
        if len(batch.carried):
            raise ValueError("a batch under tensor parallelism carries no tokens over from the step before")
        return cls(
            tokens=_bytes(batch.tokens),
            positions=_bytes(batch.positions),
            slots=_bytes(batch.slots),
            logit_rows=_bytes(batch.logit_rows),
            hidden_rows=_bytes(batch.hidden_rows),
            spans=[(span.first, span.count, span.start, list(span.pages)) for span in batch.spans],
            placements={
                first: PlacementData(_bytes(placed.positions), placed.visible.tobytes())
                for first, placed in batch.placements.items()
            },
        )

    def batch(self) -> Batch:
        """Return the batch that the command was made of."""
        spans = [Span(*span) for span in self.spans]
        counts = {span.first: span.count for span in spans}
        return Batch(
            tokens=_ids(self.tokens),
            positions=_ids(self.positions),
            slots=_ids(self.slots),
            logit_rows=_ids(self.logit_rows),
            spans=spans,
            hidden_rows=_ids(self.hidden_rows),
            placements={
                first: Placement(
                    _ids(placed.positions), np.frombuffer(placed.visible, np.bool_).reshape(counts[first], -1).copy()
                )
                for first, placed in self.placements.items()
            },
        )


class StepCommand(msgspec.Struct, tag="step"):
    """Begin a step that rank 0 has staged: see :class:`~inferd_runtime.engine.drivers.cuda_driver.StagedStep`."""

    shape: StepBucket
    block: bytes
    columns: int
    moves: bool

    @classmethod
    def of(cls, step: StagedStep) -> StepCommand:
        """Return the command for a step. It lives as long as its block stays what it is."""
        return cls(step.shape, step.block.data, step.columns, step.moves)  # type: ignore[arg-type]


class CopyPages(msgspec.Struct, tag="copy"):
    """Copy pages, (source, target) each."""

    copies: list[tuple[int, int]]

    @classmethod
    def of(cls, copies: Sequence[PageCopy]) -> CopyPages:
        """Return the command for these copies."""
        return cls([(copy.source, copy.target) for copy in copies])


class MoveTokens(msgspec.Struct, tag="move"):
    """Copy single tokens between slots."""

    sources: list[int]
    targets: list[int]


class ReadPages(msgspec.Struct, tag="read"):
    """Read the rank's part of pages: ``CommandDone.data``."""

    pages: list[int]


class WritePages(msgspec.Struct, tag="write"):
    """Put the rank's part of pages back."""

    pages: list[int]
    data: bytes


class CheckPages(msgspec.Struct, tag="check"):
    """Asks if the rank's part of pages is bearable; the answer is ``CommandDone.holds``."""

    data: bytes


class Measure(msgspec.Struct, tag="measure"):
    """Asks what the largest steps take, once the model is loaded in every rank: ``CommandDone.size``."""

    options: DriverOptions


class Build(msgspec.Struct, tag="build"):
    """Make KV cache and driver. What comes behind is for that driver."""

    options: DriverOptions


class Stop(msgspec.Struct, tag="stop"):
    """Nothing more will come."""


class CommandDone(msgspec.Struct, tag="done"):
    """The command was carried out."""

    data: bytes = b""
    holds: bool = True
    size: int = 0


class Failed(msgspec.Struct, tag="failed"):
    """The command failed before any reduction: ``error`` is the exception."""

    error: str


class Loaded(msgspec.Struct, tag="loaded"):
    """The rank's first word: its part of the model is loaded, and ``free`` bytes are left for its pages."""

    free: int


Command = (
    ForwardCommand | StepCommand | CopyPages | MoveTokens | ReadPages | WritePages | CheckPages | Measure | Build | Stop
)
RankReply = CommandDone | Failed | Loaded
_COMMANDS = msgspec.msgpack.Decoder(Command)
_REPLIES = msgspec.msgpack.Decoder(RankReply)


def encode(message: Command | RankReply) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode_command(payload: bytes) -> Command:
    """Return a command. Raises msgspec.MsgspecError."""
    command: Command = _COMMANDS.decode(payload)
    return command


def decode_reply(payload: bytes) -> RankReply:
    """Return an answer. Raises msgspec.MsgspecError."""
    reply: RankReply = _REPLIES.decode(payload)
    return reply


def page_rows(data: bytes, page_bytes: int) -> PageData:
    """Return one rank's part of some pages: uint8[n, page_bytes], writable."""
    return np.frombuffer(data, np.uint8).reshape(-1, page_bytes).copy()


def _bytes(ids: Ids) -> bytes:
    return np.ascontiguousarray(ids, np.int64).tobytes()


def _ids(data: bytes) -> Ids:
    array: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(data, np.int64).copy()
    return array
