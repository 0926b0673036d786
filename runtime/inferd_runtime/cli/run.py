"""``inferd run``: one program, once, with a runtime of its own in this process's children, or on a server that is warm."""

from __future__ import annotations

import argparse
import contextlib
import logging
import secrets
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from inferd.program.manifest import DEFAULT_VERSION
from inferd.protocol import InferdError, NotFound
from inferd_runtime.cli.answers import Uploaded, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.interrupts import run_async
from inferd_runtime.cli.launch import follow
from inferd_runtime.cli.parsing import LIMIT_SETTINGS, Parser, add_json, add_settings
from inferd_runtime.cli.program_command import CommandSyntax, ProgramCommand, add_talk, parse
from inferd_runtime.cli.program_options import ProgramInterface
from inferd_runtime.cli.progress import notice, prepare_runner
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.cli.warm import find_server, start_server
from inferd_runtime.models.names import check_names
from inferd_runtime.phases import Phases
from inferd_runtime.server.packages.finder import package_finder, with_packages
from inferd_runtime.server.programs.bundles import Program, make_program, read_sources, with_limits
from inferd_runtime.server.programs.parser_messages import upload_body
from inferd_runtime.settings.settings import Settings

SETTINGS = (
    "model", "server", "keep_warm", "timings", "state_dir", "adapter", "draft", "draft_key_file", "ca", "device",
    "dtype", "weights", "activations", "threads", "pages", "data_dir", "http_allow", "http_body_bytes", "http_ca",
    "secrets_file", "mcp_file", *LIMIT_SETTINGS,
)  # fmt: skip
MAX_VERSION = 40
"""Characters of a program's version that stand in the one of a single run on a server."""
log = logging.getLogger("inferd.run")
JSON_HELP = "print one JSON object {result, usage} and nothing else; what the program prints goes to stderr"


def run(argv: list[str]) -> int:
    """Run a program; returns the exit code of how it ended."""
    phases = Phases()
    command, program = read_command(argv)
    logging.basicConfig(level=logging.ERROR, format="inferd: %(message)s", stream=sys.stderr)
    logging.getLogger("inferd.egress").setLevel(logging.WARNING)  # why a server of tools ended: its operator runs this
    if command.settings.engine.timings:
        logging.getLogger("inferd").setLevel(logging.INFO)
    phases.end("command")
    server = find_server(command.settings)
    if server is None:
        check_names(model.name for model in command.settings.engine.models)
        prepare_runner()
        if not command.settings.keep_warm:
            return run_async(_execute, command, program, phases)
        with notice(_loading(command.settings)):
            server = start_server(command.settings)
    phases.end("server")
    code = _execute_on(server, command, program)
    phases.end("run")
    log.info("%s", phases)
    return code


def read_command(argv: list[str]) -> tuple[ProgramCommand, Program]:
    """Parse the command line and read the program. Raises InvalidRequest, ProgramSyntaxError, ProgramError."""
    found: list[Program] = []

    def find(parsed: argparse.Namespace) -> ProgramInterface:
        found.append(make_program(read_sources(Path(parsed.program))))
        return ProgramInterface.of(found[0].interface)

    description = "Run a program (a .py file, or a folder with a main.py) once."
    grammar = CommandSyntax("run", description, lambda parser: _add_options(parser, frozenset()), _add_options, find)
    return parse(grammar, argv), found[0]


def _add_options(parser: Parser, taken: frozenset[str]) -> None:
    add_settings(parser, SETTINGS, taken)
    if "json" not in taken:
        add_json(parser, JSON_HELP)
    add_talk(parser, taken)


async def _execute(command: ProgramCommand, program: Program, phases: Phases) -> int:
    """Start a runtime with one worker, run the program, show what it does, talk to it. A cancelled task cancels the run."""
    # A run on a warm server does not wait for this import.
    from inferd_runtime.server.supervisor.runtime import open_runtime

    limits = with_limits(program.limits_over(command.settings.limits), command.limits)
    arguments = msgspec.json.encode(command.arguments).decode()
    settings = replace(command.settings, workers=1, max_workers=1)
    async with AsyncExitStack() as stack:
        with notice(_loading(settings)):
            runtime = await stack.enter_async_context(open_runtime(settings, spare=0, wait=False))
            # While the engine starts: this import takes its time.
            from inferd_runtime.cli.conversation import Conversation
            from inferd_runtime.cli.own_run import OwnRun
            from inferd_runtime.server.services.launches.launches import Launches

            await runtime.wait_ready()
        phases.end("start")
        dependencies = program.interface.manifest.dependencies
        bundle = await with_packages(program.bundle, dependencies, package_finder(settings))
        program = replace(program, bundle=bundle)
        runtime.services.join(Launches(runtime, partial(_find_itself, program)))
        run = runtime.launch(program, arguments, limits=limits)
        # An interrupt of this process ends the runtime, and the run with it: nothing is to be cancelled.
        talk = replace(command.talk, cancels=False)
        code = await Conversation(OwnRun(run, runtime.files), RunScreen(command.as_json), talk, alone=True).follow()
        phases.end("run")
    phases.end("stop")
    log.info("%s", phases)
    return code


async def _find_itself(program: Program, reference: str, tenant: str) -> Program:
    """Return the one program of this runtime by its reference. Raises NotFound for any other."""
    if reference not in (program.name, f"{program.name}@{program.version}", program.id):
        text = f"`inferd run` has no program but {program.name!r}; others need a server: inferd serve, inferd upload"
        raise NotFound(text)
    return program


def _execute_on(server: Server, command: ProgramCommand, program: Program) -> int:
    """Run the program on a server that is up, and show what it does. Ctrl+C cancels the run.

    It is uploaded under a version of this run's own, and removed afterwards: it may be edited before the next run.
    """
    version = f"{program.version[:MAX_VERSION] or DEFAULT_VERSION}+run.{secrets.token_hex(6)}"
    uploaded = answer_as(Uploaded, server.upload(upload_body(program.bundle, version)))
    reference = f"{uploaded['name']}@{version}"
    alone = server != Server.of(command.settings)  # `inferd send` finds no server that was left warm
    try:
        body = {"program": reference, "arguments": command.arguments, "limits": command.limits}
        return follow(
            server, server.post("/v1/runs", body)["id"], RunScreen(command.as_json), command.talk, alone=alone
        )
    finally:
        with contextlib.suppress(InferdError):  # the server has ended
            server.delete(f"/v1/programs/{reference}")


def _loading(settings: Settings) -> str:
    return f"Loading {', '.join(model.name for model in settings.engine.model)}"
