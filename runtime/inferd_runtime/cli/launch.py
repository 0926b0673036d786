"""``inferd launch``: run an uploaded program on a server and stream what it prints; Ctrl+C cancels the run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inferd.protocol import InvalidRequest, NotFound, Unavailable
from inferd.transport.answers import fields_of
from inferd_runtime.cli.answers import Started, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, LIMIT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.program_command import CommandSyntax, ProgramCommand, TalkOptions, add_talk, parse
from inferd_runtime.cli.program_options import ProgramInterface
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.settings.settings import FIELDS

DESCRIPTION = """Run an uploaded program: NAME, NAME@VERSION or sha256:HASH. What is typed is sent to it once it waits for a
message. Ctrl+C cancels the run; losing the connection does not."""
MCP_HELP = (
    "servers of tools (mcp.json), started here for this run and those that it launches; they end with this command"
)
JSON_HELP = "print one JSON object {result, usage} and nothing else; what the program prints goes to stderr"


def launch(argv: list[str]) -> int:
    """Launch a program and follow it; returns the exit code of how it ended."""
    asked: list[tuple[Server, str]] = []

    def find(parsed: argparse.Namespace) -> ProgramInterface:
        server = Server.of(settings_of(parsed))
        asked.append((server, parsed.program))
        misplaced = misplaced_options(parsed.rest)
        try:
            described = server.get(f"/v1/programs/{quote(parsed.program, safe='')}")
        except (NotFound, Unavailable) as error:
            raise _misplaced(misplaced, error.message) if misplaced else error from None
        interface = ProgramInterface.from_json(fields_of(described, interface=dict)["interface"])
        ours = [flag for flag in misplaced if flag.removeprefix("--").replace("-", "_") not in interface.names]
        if ours:
            raise _misplaced(ours, f"{parsed.program} has no such parameter")
        return interface

    command = parse(CommandSyntax("launch", DESCRIPTION, _add_options_before, _add_options_after, find), argv)
    server, program = asked[0]
    body: dict[str, Any] = {"program": program, "arguments": command.arguments, "limits": command.limits}
    if command.retry_safe:
        body["retry_safe"] = True
    if command.mcp_file is not None:
        return _launch_with_servers(server, body, command, command.mcp_file)
    run = server.post("/v1/runs", body)
    if not command.detach:
        return follow(server, answer_as(Started, run)["id"], RunScreen(command.as_json), command.talk)
    if command.as_json:
        print_json(run)
    else:
        say(answer_as(Started, run)["id"])
    return 0


def misplaced_options(rest: list[str]) -> list[str]:
    """Return the options behind PROGRAM that would say which server to ask for it, if they are not the program's own.

    They are not heeded there: what a program's parameter of that name is given must not become a server that gets a token.
    """
    flags = [FIELDS[name].flag for name in CLIENT_SETTINGS]
    given = {word.partition("=")[0] for word in rest}
    return [flag for flag in flags if flag in given]


def _misplaced(flags: list[str], why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{why}; {', '.join(flags)} behind PROGRAM can only be its own: what says which server to ask stands before it, "
        f"as in `inferd launch {flags[0]} ... PROGRAM`"
    )


def _add_options_before(parser: Parser) -> None:
    add_settings(parser, CLIENT_SETTINGS)
    _add_options_after(parser, frozenset({"config"}))


def _add_options_after(parser: Parser, taken: frozenset[str]) -> None:
    add_settings(parser, LIMIT_SETTINGS, taken | {"config"})
    if "json" not in taken:
        add_json(parser, JSON_HELP)
    if "detach" not in taken:
        parser.add_argument("--detach", dest="detach", action="store_true", help="print the run's id and do not wait")
    if "retry_safe" not in taken:
        text = (
            "start the run again after a crash of engine or worker; the program must repeat itself with the same seed"
        )
        parser.add_argument("--retry-safe", dest="retry_safe", action="store_true", help=text)
    if "mcp_file" not in taken:
        parser.add_argument("--mcp-file", dest="brought_file", type=Path, metavar="FILE", help=MCP_HELP)
    add_talk(parser, taken)


def follow(server: Server, run: str, screen: RunScreen, options: TalkOptions, *, alone: bool = False) -> int:
    """Show a run until it is over, and talk to it. The first Ctrl+C cancels it, a second one leaves at once.

    ``alone``: nobody else sends it anything.
    """
    # A launch that is not followed starts without these.
    import anyio

    return anyio.run(_followed, server, run, screen, options, alone)


def _launch_with_servers(server: Server, body: dict[str, Any], command: ProgramCommand, servers: Path) -> int:
    """Launch and follow a run that may use the servers of a file, which are started here and end with this command."""
    if command.detach:
        raise InvalidRequest(
            "--mcp-file with --detach: the servers of the file end with this command, so it has to stay"
        )
    import anyio

    async def launched() -> int:
        from inferd_runtime.cli.conversation import Conversation

        async with server.client() as client, client.mcp(servers) as brought:
            run = await client.launch(
                body["program"],
                body["arguments"],
                limits=body["limits"],
                retry_safe=body.get("retry_safe"),
                mcp=brought,
                wait_s=0,
            )
            return await Conversation(run, RunScreen(command.as_json), command.talk).follow()

    return anyio.run(launched)


async def _followed(server: Server, name: str, screen: RunScreen, options: TalkOptions, alone: bool) -> int:
    from inferd_runtime.cli.conversation import Conversation

    async with server.client() as client:
        return await Conversation(await client.attach(name), screen, options, alone=alone).follow()
