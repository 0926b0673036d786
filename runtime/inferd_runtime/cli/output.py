"""What the command line prints: a program's own output, its result, the figures, tables and JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from inferd_runtime.sandbox.messages import RunUsage

CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # single controls, except tab, newline, carriage return
)
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
MOST_HELD = 4096
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
LINE_BREAKS = re.compile(r"[\r\n\t\u2028\u2029]+")


class ControlFilter:
    """Takes terminal control sequences out of a stream of text, also those that are cut in two."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the next piece without control sequences; an unfinished one at its end is kept for the next call."""
        text = self._held + text
        match = UNFINISHED.search(text)
        self._held = match[0] if match is not None and len(match[0]) <= MOST_HELD else ""
        return CONTROL.sub("", text[: len(text) - len(self._held)])


class ProgramOutput:
    """Where a program's text goes. On a terminal control sequences are removed: the text is not trusted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._filter = ControlFilter() if stream.isatty() else None
        self._at_line_start = True

    def write(self, text: str) -> None:
        """Print a piece of the program's output at once."""
        if self._filter is not None:
            text = self._filter.feed(text)
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Start a new line, unless the program has."""
        if not self._at_line_start:
            self.write("\n")


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line with untrusted parts (an error's message, a name, an id). On a terminal control sequences are removed."""
    ProgramOutput(stream or sys.stdout).write(text + "\n")


def print_json(value: Any) -> None:
    """Print a JSON value on one line; on a terminal, what JSON leaves of control characters stands there as escapes."""
    text = msgspec.json.encode(value).decode()
    print(text.translate(JSON_ESCAPES) if sys.stdout.isatty() else text, flush=True)


def shown_time(seconds: float) -> str:
    """Return seconds since the epoch as day and time of day."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def figures(usage: RunUsage) -> str:
    """Return one line with what a run used."""
    per_step = f"{usage.tokens / usage.steps:.2f}" if usage.steps else "-"
    parts = [
        f"{usage.tokens} tokens", f"{usage.steps} steps", f"{per_step} tokens/step", f"{usage.drafted} drafted",
        f"{usage.accepted} accepted", f"{usage.wall_ms / 1e3:.2f} s", f"{usage.peak_memory_mb:.0f} MiB",
    ]  # fmt: skip
    return ", ".join(parts)


def since(seconds: float) -> str:
    """Return a length of time in one unit."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m" if minutes < 120 else f"{minutes // 60}h"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, each as wide as its widest cell, without control sequences."""
    table = [list(head), *[[LINE_BREAKS.sub(" ", CONTROL.sub("", cell)) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
