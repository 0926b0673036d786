"""``inferd batch``: requests of a file in OpenAI's batch format, answered line by line; a second start goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.batch_files import (
    AnswerFile,
    BatchRequest,
    BatchResponse,
    answered,
    new_answer,
    open_answers,
    requests,
)
from inferd_runtime.cli.batch_sending import batch_client, send_all
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.interrupts import run_async
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.progress import notice, prepare_runner
from inferd_runtime.cli.warm import find_server, start_server
from inferd_runtime.settings.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress, TaskID

DESCRIPTION = """Answer the requests of INPUT, a file in OpenAI's batch format, each line of which is
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
and append a line to OUTPUT for each. What OUTPUT has already is not asked again: a second start goes on where the first ended.
Requests go to a server (--url), or with --model to one that is found or started, and stays for --keep-warm minutes."""
JSON_HELP = "print one JSON object {requests, kept, answered, failed}; failed ones are answered, with an error's status"
OWN_SERVER = ("model", "server", "keep_warm", "device", "dtype", "weights", "activations", "threads")
AT_ONCE = 8
MOST_AT_ONCE = 512
OWN_SERVER_MINUTES = 10.0


@dataclass
class Tally:
    """How far a batch is; written to ``answers`` as it goes on."""

    answers: AnswerFile
    requests: int
    kept: int
    bar: BatchBar
    answered: int = 0
    failed: int = 0

    def add(self, request: BatchRequest, response: BatchResponse) -> None:
        """Keep an answer."""
        self.answers.append(new_answer(request, response))
        self.answered += 1
        self.failed += response.status_code >= 400
        self.bar.show(self.kept + self.answered, self.failed)


@dataclass
class BatchBar:
    """A bar on a terminal, nothing elsewhere."""

    progress: RichProgress | None = None
    task: TaskID | None = field(default=None)

    def show(self, done: int, failed: int) -> None:
        """Show how many are done."""
        if self.progress is not None and self.task is not None:
            text = f"{failed} failed" if failed else ""
            self.progress.update(self.task, completed=done, description=text)


def batch(argv: list[str]) -> int:
    """Answer a file of requests; returns 0 once each has its line, errors of single requests included."""
    parsed = _parser().parse_args(argv)
    if parsed.input.resolve() == parsed.output.resolve():
        raise InvalidRequest("INPUT and OUTPUT are the same file")
    expected = {request.custom_id for request in requests(parsed.input)}
    with open_answers(parsed.output) as answers:
        kept = answered(parsed.output, expected)
        with _bar(len(expected), len(kept)) as bar:
            tally = Tally(answers, len(expected), len(kept), bar)
            left = (request for request in requests(parsed.input) if request.custom_id not in kept)
            if len(kept) < len(expected):
                run_async(_answer, _server(parsed), left, parsed.at_once, tally)
    if parsed.as_json:
        print_json({name: getattr(tally, name) for name in ("requests", "kept", "answered", "failed")})
    else:
        failed = f", {tally.failed} of them with errors" if tally.failed else ""
        say(f"{parsed.output}: {tally.answered} of {tally.requests} answered now{failed}; {tally.kept} were there")
    return 0


async def _answer(server: Server, left: Iterator[BatchRequest], at_once: int, tally: Tally) -> None:
    async with batch_client(server, at_once) as client:
        await send_all(client, left, at_once, tally.add)


def _parser() -> Parser:
    parser = Parser("batch", DESCRIPTION)
    parser.add_argument("input", type=Path, metavar="INPUT")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    parser.add_argument(
        "--at-once", type=_at_once, default=AT_ONCE, metavar="N", help=f"requests at a time; default: {AT_ONCE}"
    )
    add_settings(parser, (*CLIENT_SETTINGS, *OWN_SERVER))
    add_json(parser, JSON_HELP)
    return parser


def _at_once(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_AT_ONCE:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MOST_AT_ONCE}")
    return int(text)


def _server(parsed: argparse.Namespace) -> Server:
    """Return the server to ask. Raises InvalidRequest for both an address and a model."""
    settings = settings_of(parsed)
    if parsed.setting_model is None:
        return Server.of(settings)
    if parsed.setting_url is not None:
        raise InvalidRequest("--url and --model exclude each other: the server at that address has its own models")
    return find_server(settings) or _started(settings)


def _started(settings: Settings) -> Server:
    prepare_runner()
    with notice("Starting a server"):
        return start_server(replace(settings, keep_warm=settings.keep_warm or OWN_SERVER_MINUTES))


@contextmanager
def _bar(total: int, done: int) -> Iterator[BatchBar]:
    if not sys.stderr.isatty():
        yield BatchBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield BatchBar(progress, progress.add_task("", total=total, completed=done))
