"""Messages between `inferd_grammar.trials.pool` and its child: attempts as pickles, answers as JSON."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, NamedTuple

from inferd_grammar.constraints import Constraint
from inferd_grammar.limits import CompileLimits

LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Attempt:
    """A request of the parent. `table` is (tokenizer text, width, EOS ids) when `known` is new to this child."""

    known: tuple[str, str]
    table: tuple[str, int, tuple[int, ...]] | None
    constraint: Constraint
    limits: CompileLimits
    cpu_seconds: float
    memory_bytes: int
    mask_seconds: float


class Tried(NamedTuple):
    """A constraint that compiles: the core's recipe if it has one, and the bytes that the child grew by."""

    recipe: str | None
    grown: int


def write_message(sink: IO[bytes], data: bytes) -> None:
    """Write one message: its length, then its bytes. Raises OSError if the reader is gone."""
    sink.write(LENGTH.pack(len(data)) + data)
    sink.flush()


def read_message(source: IO[bytes]) -> bytes:
    """Return the next message. Raises EOFError when the other side is gone."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    data = source.read(length)
    if len(data) < length:
        raise EOFError
    return data
