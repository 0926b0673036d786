"""The verbs that ask a server one thing: ``upload``, ``ps``, ``logs``, ``stop``."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.cli.answers import Runs, ShownRun, Uploaded, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, print_table, say, since
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.cli.warm import warm_servers
from inferd_runtime.server.programs.bundles import make_program, read_sources
from inferd_runtime.server.programs.parser_messages import upload_body

FINISHED_SHOWN = 20
"""So many of the runs that are over are listed, unless all are asked for."""


def upload(argv: list[str]) -> int:
    """Upload a program: nothing changes if the server has it."""
    parser = _parser(
        "upload", "Upload a program: a .py file, or a folder with a main.py.", "print what the server has now"
    )
    parser.add_argument("program", type=Path, metavar="PROGRAM")
    parser.add_argument("--name", default="", help="instead of the program's own name")
    parser.add_argument("--version", default="", help="instead of the program's own version")
    parsed = parser.parse_args(argv)
    program = make_program(read_sources(parsed.program), parsed.name, parsed.version)
    answer = Server.of(settings_of(parsed)).upload(upload_body(program.bundle, parsed.version))
    if parsed.as_json:
        print_json(answer)
    else:
        kept = answer_as(Uploaded, answer)
        state = "uploaded" if kept["created"] else "was there already"
        say(f"{kept['name']}@{kept['version']}  {kept['id']}  {state}")
    return 0


def ps(argv: list[str]) -> int:
    """List runs, newest first."""
    parser = _parser("ps", "List runs, newest first, and models that `inferd run` keeps warm.", "print {runs, warm}")
    parser.add_argument(
        "-a", "--all", action="store_true", help=f"of the runs that are over, not only the newest {FINISHED_SHOWN}"
    )
    parsed = parser.parse_args(argv)
    settings = settings_of(parsed)
    warm = list(warm_servers(settings))
    try:
        answer = Server.of(settings).get("/v1/runs")
    except Unavailable:
        if not warm:
            raise
        answer = {"runs": []}
    runs = answer_as(Runs, answer)["runs"]
    if parsed.as_json:
        print_json({"runs": answer["runs"], "warm": warm})
        return 0
    over = [run for run in runs if run["finished_at"] is not None]
    left_out = {run["id"] for run in over[FINISHED_SHOWN:]} if not parsed.all else set()
    shown = [_row(run) for run in runs if run["id"] not in left_out]
    print_table(("RUN", "PROGRAM", "STATE", "AGE", "TOOK", "TOKENS", "PARENT"), shown)
    if left_out:
        say(f"and {len(left_out)} older ones: --all")
    for one in warm:
        say(
            f"warm: {', '.join(one['models'])} on {one['url']}, pid {one['pid']}; ends after {one['idle_minutes']:g} idle minutes"
        )
    return 0


def _row(run: ShownRun) -> tuple[str, ...]:
    program, usage = run["program"], run["usage"]
    over = run["finished_at"] is not None
    state = run["state"] if run["error"] is None else f"{run['state']} ({run['error'].code})"
    return (
        run["id"],
        f"{program['name']}@{program['version']}",
        state,
        since(time.time() - run["created_at"]),
        since(usage["wall_ms"] / 1e3) if over else "-",
        str(usage["tokens"]) if over else "-",
        run.get("parent") or "-",
    )


def logs(argv: list[str]) -> int:
    """Show what a run printed."""
    parser = _parser("logs", "Show what a run printed, and how it ended.", "print each event as one JSON object")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="until the run is over")
    parsed = parser.parse_args(argv)
    anyio.run(_show_logs, Server.of(settings_of(parsed)), parsed.run, parsed.follow, parsed.as_json)
    return 0


async def _show_logs(server: Server, name: str, follow: bool, as_json: bool) -> None:
    from inferd_runtime.cli.conversation import shown_events, with_gap

    show = print_json if as_json else RunScreen(as_json=False).show_json
    async with server.client() as client:
        run = await client.attach(name)
        if not follow:
            for event in with_gap(await run.logs()):
                show(event)
            return
        async with aclosing(shown_events(run)) as events:
            async for event in events:
                show(event)


def stop(argv: list[str]) -> int:
    """Cancel a run and wait until it is over."""
    parser = _parser("stop", "Cancel a run and wait until it is over.", "print the run")
    parser.add_argument("run", metavar="RUN")
    parsed = parser.parse_args(argv)
    answer = anyio.run(_stopped, Server.of(settings_of(parsed)), parsed.run)
    if parsed.as_json:
        print_json(answer)
    else:
        say(f"{answer['id']}  {answer['state']}")
    return 0


async def _stopped(server: Server, name: str) -> dict[str, Any]:
    async with server.client() as client:
        run = await client.attach(name)
        await run.cancel()
        try:
            await run.result()
        except InferdError:
            if run.record["finished_at"] is None:
                raise
        return run.record


def _parser(verb: str, description: str, json_help: str) -> Parser:
    parser = Parser(verb, description)
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, json_help)
    return parser
