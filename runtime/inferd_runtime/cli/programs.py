"""``inferd programs``: what a tenant has uploaded; ``programs rm`` removes one."""

from __future__ import annotations

import time
from urllib.parse import quote

from inferd_runtime.cli.answers import Programs, Removed, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, print_table, say, since
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of

PROGRAMS = """List the programs on a server, newest first.

    inferd programs rm NAME@VERSION       remove a version, or all of NAME; runs that have it go on"""


def programs(argv: list[str]) -> int:
    """List the tenant's programs, or remove one of them."""
    return remove(argv[1:]) if argv[:1] == ["rm"] else listed(argv)


def listed(argv: list[str]) -> int:
    """List the tenant's programs."""
    parser = Parser("programs", PROGRAMS)
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, "print {programs: [{id, name, version, created_at, serves}]}")
    parsed = parser.parse_args(argv)
    answer = Server.of(settings_of(parsed)).get("/v1/programs")
    found = answer_as(Programs, answer)["programs"]
    if parsed.as_json:
        print_json(answer)
        return 0
    rows = [
        (
            f"{one['name']}@{one['version']}",
            since(time.time() - one["created_at"]),
            one["serves"] or "-",
            one["id"][:19],
        )
        for one in found
    ]
    print_table(("PROGRAM", "AGE", "SERVES", "HASH"), rows)
    return 0


def remove(argv: list[str]) -> int:
    """Remove a program."""
    parser = Parser("programs rm", "Remove a version of a program, or all of its versions; runs that have it go on.")
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, "print {removed}")
    parser.add_argument("program", metavar="NAME[@VERSION]")
    parsed = parser.parse_args(argv)
    answer = Server.of(settings_of(parsed)).delete(f"/v1/programs/{quote(parsed.program, safe='@:')}")
    removed = answer_as(Removed, answer)["removed"]
    if parsed.as_json:
        print_json(answer)
    else:
        say(f"{parsed.program}: {removed} removed")
    return 0
