"""``inferd attach``: follow a run that goes on, and talk to it; ``inferd send``: hand it one message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import anyio

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.conversation import Conversation
from inferd_runtime.cli.output import print_json
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.program_command import JSON_INPUT_HELP, TalkOptions, add_talk, message_of
from inferd_runtime.cli.run_screen import RunScreen


def attach(argv: list[str]) -> int:
    """Follow a run from now on, or from its first event that is kept; returns the exit code of how it ended."""
    parser = Parser("attach", "Follow a run from now on. What is typed is sent to it; Ctrl+C leaves it as it is.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--replay", action="store_true", help="show what it has said so far, first")
    add_talk(parser, frozenset())
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, "print one JSON object {result, usage} and nothing else; what the program prints goes to stderr")
    parsed = parser.parse_args(argv)
    options = replace(TalkOptions.of(parsed), cancels=False)
    return anyio.run(_attached, Server.of(settings_of(parsed)), parsed.run, parsed.replay, parsed.as_json, options)


async def _attached(server: Server, name: str, replay: bool, as_json: bool, options: TalkOptions) -> int:
    async with server.client() as client:
        run = await client.attach(name)
        last = max(0, run.record["next_event"] - 1)  # it may say that the run waits, or how it ended
        return await Conversation(run, RunScreen(as_json), options).follow(0 if replay else last, last)


def send(argv: list[str]) -> int:
    """Hand a message to a run, or tell it that there are no more."""
    parser = Parser("send", "Hand a message to a run: its session.receive() returns it.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("message", metavar="MESSAGE", nargs="?")
    parser.add_argument("--file", dest="file", type=Path, metavar="PATH", help="a file for its session.receive_file()")
    parser.add_argument("--end", action="store_true", help="there are no more messages")
    parser.add_argument("--json-input", dest="json_input", action="store_true", help=JSON_INPUT_HELP)
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, "print what the server answers")
    parsed = parser.parse_intermixed_args(argv)  # MESSAGE may stand behind options
    if parsed.message is None and parsed.file is None and not parsed.end:
        raise InvalidRequest("send wants a MESSAGE, --file PATH, or --end", usage=parser.format_usage().strip())
    server, path = Server.of(settings_of(parsed)), f"/v1/runs/{quote(parsed.run, safe='')}/messages"
    answer = {"delivered": True}
    if parsed.message is not None:
        answer = server.post(path, {"message": message_of(parsed.message, parsed.json_input)})
    if parsed.file is not None:
        anyio.run(_send_file, server, parsed.run, parsed.file)
    if parsed.end:
        answer = server.post(path, {"end": True})
    if parsed.as_json:
        print_json(answer)
    return 0


async def _send_file(server: Server, run: str, path: Path) -> None:
    async with server.client() as client:
        await (await client.attach(run)).send_file(path)
