"""``inferd launch``: run an uploaded program on a server and stream what it prints; Ctrl+C cancels the run."""

from __future__ import annotations

import argparse
import sys
from typing import Any
from urllib.parse import quote

from inferd.protocol import Unavailable

from inferd_runtime.cli.boundary import EXIT_INTERRUPTED
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, LIMIT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.program_options import ProgramInterface, add_program_options, arguments_of
from inferd_runtime.cli.run_screen import RunScreen

USAGE = "inferd launch [options] PROGRAM [the program's parameters and options]"
DESCRIPTION = """Run an uploaded program: NAME, NAME@VERSION or sha256:HASH.

inferd launch PROGRAM --help shows the program's own parameters. Where one has the name of an option below, write the
option before PROGRAM. Ctrl+C cancels the run; losing the connection does not."""


def launch(argv: list[str]) -> int:
    """Launch a program and follow it; returns the exit code of how it ended."""
    head = Parser("launch", DESCRIPTION, usage=USAGE)
    _add_own_options(head, frozenset())
    head.add_argument("program", metavar="PROGRAM")
    head.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    first = head.parse_args(argv)
    server = Server.of(settings_of(first))
    described = server.get(f"/v1/programs/{quote(first.program, safe='')}")
    interface = ProgramInterface.from_json(described["interface"])
    tail = Parser(f"launch {first.program}", interface.doc, add_help="help" not in interface.names)
    add_program_options(tail, interface)
    _add_own_options(tail, interface.names | set(CLIENT_SETTINGS))
    second = tail.parse_args(first.rest[1:] if first.rest[:1] == ["--"] else first.rest)
    limits = _limits_given(first) | _limits_given(second)
    body = {"program": first.program, "arguments": arguments_of(second, interface), "limits": limits}
    run = server.post("/v1/runs", body)
    if first.detach or getattr(second, "detach", False):
        return _detached(run, first.as_json or getattr(second, "as_json", False))
    return follow(server, run["id"], RunScreen(first.as_json or getattr(second, "as_json", False)))
