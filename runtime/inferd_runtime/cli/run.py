"""``inferd run``: one program, once, with a runtime of its own in this process's children. No server."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inferd_runtime.cli.interrupts import run_async
from inferd_runtime.cli.parsing import LIMIT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.program_options import ProgramInterface, add_program_options, arguments_of
from inferd_runtime.cli.progress import prepare_runner
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.config import Settings
from inferd_runtime.server.bundles import Program, make_program, read_sources, with_limits
from inferd_runtime.server.runtime import open_runtime

SETTINGS = ("model", "device", "threads", "pages", *LIMIT_SETTINGS)
USAGE = "inferd run [options] PROGRAM [the program's parameters and options]"
DESCRIPTION = """Run a program (a .py file, or a folder with a main.py) once.

inferd run PROGRAM --help shows the program's own parameters. Where one has the name of an option below, write the option
before PROGRAM."""


@dataclass(frozen=True)
class Task:
    """What one ``inferd run`` has to do. ``limits_given`` were set by the user, so they win over the program's own."""

    program: Program
    arguments: str
    settings: Settings
    limits_given: tuple[str, ...]
    as_json: bool


def run(argv: list[str]) -> int:
    """Run a program; returns the exit code."""
    task = read_command(argv)
    logging.basicConfig(level=logging.ERROR, format="inferd: %(message)s", stream=sys.stderr)
    prepare_runner()
    return run_async(_execute, task)


def read_command(argv: list[str]) -> Task:
    """Parse the command line, the program's own options included. Raises InvalidRequest and what reading it raises."""
    head = Parser("run", DESCRIPTION, usage=USAGE)
    _add_own_options(head, frozenset())
    head.add_argument("program", type=Path, metavar="PROGRAM")
    head.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    first = head.parse_args(argv)
    program = make_program(read_sources(first.program))
    interface = ProgramInterface.of(program.interface)
    tail = Parser(f"run {first.program}", interface.doc, add_help="help" not in interface.names)
    add_program_options(tail, interface)
    _add_own_options(tail, interface.names)
    second = tail.parse_args(first.rest[1:] if first.rest[:1] == ["--"] else first.rest)
    arguments = arguments_of(second, interface)
    as_json = first.as_json or getattr(second, "as_json", False)
    given = tuple(name for name in LIMIT_SETTINGS if any(getattr(p, f"setting_{name}", None) for p in (first, second)))
    return Task(program, msgspec.json.encode(arguments).decode(), settings_of(first, second), given, as_json)


def _add_own_options(parser: Parser, taken: frozenset[str]) -> None:
    add_settings(parser, SETTINGS, taken)
    if "json" not in taken:
        add_json(parser, "print one JSON object {result, usage} and nothing else; what the program prints goes to stderr")


async def _execute(task: Task) -> int:
    """Start a runtime with one worker, run the program, print what it does. A cancelled task cancels the run."""
    async with open_runtime(replace(task.settings, workers=1, max_workers=1), spare=0) as runtime:
        limits = task.program.limits_over(task.settings.limits)
        limits = with_limits(limits, {name: getattr(task.settings, name) for name in task.limits_given})
        run = runtime.launch(task.program, task.arguments, limits=limits)
        screen = RunScreen(task.as_json)
        async for event in run.follow():
            screen.show(event.kind, event.payload)
        ending = await run.wait()
    return screen.finish(ending.result, ending.error, ending.usage)
