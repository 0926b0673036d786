"""The two files of ``inferd batch``: requests, read and checked line by line, and answers, appended so that a kill loses none."""

from __future__ import annotations

import fcntl
import os
import secrets
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from inferd.protocol import InvalidRequest, Unavailable, shown

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_ID = 512
PEEK_BYTES = 1 << 20


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the input. ``body`` is sent as it stands there."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class BatchResponse(msgspec.Struct, frozen=True):
    """What the server answered, errors included."""

    status_code: int
    request_id: str
    body: Any


class BatchAnswer(msgspec.Struct, frozen=True):
    """A line of the output."""

    id: str
    custom_id: str
    response: BatchResponse
    error: None = None


class _Answered(msgspec.Struct, frozen=True):
    """What counts of a line of the output."""

    custom_id: str


def new_answer(request: BatchRequest, response: BatchResponse) -> BatchAnswer:
    """Return the output's line for a request."""
    return BatchAnswer(f"batch_req_{secrets.token_hex(12)}", request.custom_id, response)


def requests(path: Path) -> Iterator[BatchRequest]:
    """Yield the requests of a file. Raises InvalidRequest, which names the line, for an invalid one, and for a second one with
    the same ``custom_id``.
    """
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        request = _decoded(path, number, line, BatchRequest)
        if not 0 < len(request.custom_id) <= MAX_ID:
            raise _wrong(path, number, f"custom_id must have 1 to {MAX_ID} characters")
        if request.url not in ROUTES:
            raise _wrong(path, number, f"url must be one of {', '.join(ROUTES)}, not {shown(request.url)}")
        body = _decoded(path, number, bytes(request.body), dict[str, Any])
        for name in ("stream", "background"):
            if body.get(name):
                raise _wrong(path, number, f"body.{name}: the answers of a batch come whole")
        first = seen.setdefault(request.custom_id, number)
        if first != number:
            raise _wrong(path, number, f"custom_id {request.custom_id!r} is that of line {first}, too")
        yield request


def answered(path: Path, expected: set[str]) -> set[str]:
    """Return the ids that the output has an answer to. Raises InvalidRequest, which names the line, for one that is no answer to
    any of ``expected``, or a second one.
    """
    found: set[str] = set()
    for number, line in _lines(path):
        custom_id = _decoded(path, number, line, _Answered).custom_id
        if custom_id not in expected:
            raise _wrong(path, number, f"it answers custom_id {custom_id!r}, which the input does not have")
        if custom_id in found:
            raise _wrong(path, number, f"it is a second answer to custom_id {custom_id!r}")
        found.add(custom_id)
    return found


class AnswerFile:
    """Made by :func:`open_answers`: the only one that writes to the output."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def append(self, answer: BatchAnswer) -> None:
        """Write a line, and return once the disk has it. Raises Unavailable if that fails; a part of a line may stand there."""
        try:
            self._file.write(msgspec.json.encode(answer) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}") from None

    def drop_torn_line(self) -> None:
        """Cut off a last line that was not written to its end."""
        end = _end_of_lines(self._file)
        if end != self._file.seek(0, os.SEEK_END):
            self._file.truncate(end)
            os.fsync(self._file.fileno())


@contextmanager
def open_answers(path: Path) -> Iterator[AnswerFile]:
    """Open the output for this process alone; a torn last line is cut off. Raises InvalidRequest, and Unavailable while another
    process has it.
    """
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be opened: {error.strerror or error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"another `inferd batch` writes {path}") from None
        _keep_name(path)
        answers = AnswerFile(path, file)
        answers.drop_torn_line()
        yield answers


def _keep_name(path: Path) -> None:
    """Have the disk keep the file's name, too, which a file's own fsync does not."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _end_of_lines(file: BinaryIO) -> int:
    """Return how many bytes the complete lines have."""
    at = file.seek(0, os.SEEK_END)
    while at:
        start = max(0, at - PEEK_BYTES)
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        at = start
    return 0


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, numbered from 1."""
    try:
        with path.open("rb") as file:
            if not file.seekable():
                raise InvalidRequest(f"{path} is a pipe, and a batch is read more than once: write it to a file")
            for number, line in enumerate(file, 1):
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None


def _decoded(path: Path, number: int, line: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(path, number, str(error)) from None


def _wrong(path: Path, number: int, message: str) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {number}: {message}", line=number)
