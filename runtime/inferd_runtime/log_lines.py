"""Log lines, for people or as JSON, with the run, the request and the tenant that they are about.

Lines about a run name it: ``log.info("...", extra=run_fields(run.id, run.tenant))``. What belongs to a request gets its id and
tenant from :func:`log_fields`, which the gateway holds open while it answers. Lines that engine and workers write in JSON are
taken over with their fields. Texts of strangers cannot write control characters, nor lines that look like others.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

FIELDS = ("run", "request", "tenant")
OF_STRANGERS = ("uvicorn.error", "inferd.connections", "inferd.storage")
"""Loggers whose lines anybody can cause, also without a token; the last, with each use of a disk that is full."""
LINES_OF_STRANGERS = 120
"""Of each of these, in a minute: a flood of them must not fill the disk."""
MAX_TEXT = 8 << 10
"""Characters of a message or a traceback that are written."""
CURRENT: ContextVar[Mapping[str, str]] = ContextVar("inferd_log_fields", default={})  # noqa: B039 - never changed in place


class ChildLine(msgspec.Struct, frozen=True):
    """A line that a child process wrote with :class:`JsonLines`."""

    level: Literal["debug", "info", "warning", "error", "critical"]
    message: str
    run: str = ""
    request: str = ""
    tenant: str = ""
    exception: str = ""


def printable(text: str) -> str:
    """Return a text that stays on its line and changes no terminal: at most MAX_TEXT characters, and as escapes those that are
    controls, change the direction of a line, or are not seen.
    """
    if text.isprintable() and len(text) <= MAX_TEXT:
        return text  # almost every line, in a fraction of the time
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:MAX_TEXT])
    return shown if len(text) <= MAX_TEXT else f"{shown}... ({len(text)} characters)"


def run_fields(run: str, tenant: str, request: str = "") -> dict[str, str]:
    """Return the ``extra`` of a line about a run; ``request`` is the one that launched it."""
    return {"run": run, "tenant": tenant, **({"request": request} if request else {})}


def current_request() -> str:
    """Return the id of the request that is being answered, "" outside of one."""
    return CURRENT.get().get("request", "")


def current_traceparent() -> str:
    """Return the W3C trace context of the request that is being answered, as it was sent; "" without one."""
    return CURRENT.get().get("traceparent", "")


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Give all lines of this task, and of what it starts, these fields where they say nothing else."""
    before = CURRENT.set({**CURRENT.get(), **fields})
    try:
        yield
    finally:
        CURRENT.reset(before)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of a line that are not empty."""
    found = {name: str(getattr(record, name, "")) for name in FIELDS}
    return {name: printable(value) for name, value in found.items() if value}


class AddCurrentFields(logging.Filter):
    """Writes the fields of :func:`log_fields` into each line, where the line was made."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add them; every line passes."""
        for name, value in CURRENT.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class FewLines(logging.Filter):
    """Lets so many lines a minute pass; the next one that does says how many were left out."""

    def __init__(self, per_minute: int) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._minute = self._count = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes."""
        minute = int(record.created // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        if self._count > self._per_minute:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} (before it {self._left_out} such lines were left out)", ()
            self._left_out = 0
        return True


class ConsoleLines(logging.Formatter):
    """``time logger: message  [run=... request=... tenant=...]``; the lines of a traceback are indented below."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{self.formatTime(record)} {record.name}: {level}{printable(record.getMessage())}"
        fields = fields_of(record)
        if fields:
            text += f"  [{' '.join(f'{name}={value}' for name, value in fields.items())}]"
        trace = _trace(self, record)
        return "\n    ".join([text, *map(printable, trace.splitlines())])


class JsonLines(logging.Formatter):
    """One JSON object a line: time (ISO 8601, UTC), level, logger, message, the fields, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        value = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
            **fields_of(record),
        }
        if trace := _trace(self, record):
            value["exception"] = "\n".join(map(printable, trace.splitlines()))
        return json.dumps(value, ensure_ascii=False)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a line, its end if it is long: that is where the exception stands."""
    text = formatter.formatException(record.exc_info) if record.exc_info else str(getattr(record, "exception", ""))
    return text[-MAX_TEXT:]


def configure_logging(kind: str, level: str, stream: TextIO | None = None) -> logging.Handler:
    """Write all lines of a level and above to a stream, stderr by default. ``kind``: console or json."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else ConsoleLines())
    handler.addFilter(AddCurrentFields())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in OF_STRANGERS:
        logging.getLogger(name).addFilter(FewLines(LINES_OF_STRANGERS))
    return handler


def relay_child_line(log: logging.Logger, line: str) -> None:
    """Log what a child process printed: one of its own log lines with level and fields, anything else as it is."""
    try:
        found = msgspec.json.decode(line, type=ChildLine) if line.startswith('{"time":') else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = None
    if found is None:
        log.info("%s", line)
        return
    given = {name: getattr(found, name) for name in (*FIELDS, "exception") if getattr(found, name)}
    log.log(logging.getLevelName(found.level.upper()), "%s", found.message, extra=given)
