"""``inferd token``: make, list, rotate and revoke access tokens in a server's data folder, while it runs or not."""

from __future__ import annotations

import re
import sys
import time
from argparse import Namespace
from contextlib import closing

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.output import print_json, print_table, shown_time
from inferd_runtime.cli.parsing import Parser, add_verbs, settings_of
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.token_store import TOKENS_FILE, NewToken, TokenEntry, TokenStore
from inferd_runtime.server.tokens_file import check_tenant

DESCRIPTION = """Access tokens of the server whose data folder this is. A change counts at once; nothing has to be restarted.

A new token is shown once: only its hash is kept."""
VERBS = {
    "create": "make a token for TENANT",
    "list": "list tokens, newest first; never their text",
    "revoke": "end the token with this ID now",
    "rotate": "make a token like the one with this ID, which then ends",
}
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(r"(\d{1,6})([smhd])")


def token(argv: list[str]) -> int:
    """Run ``inferd token VERB``; returns the exit code."""
    parser = Parser("token", DESCRIPTION)
    for verb, one in add_verbs(parser, VERBS, ["data_dir"]).items():
        _add_arguments(verb, one)
    parsed = parser.parse_args(argv)
    with closing(TokenStore(settings_of(parsed).data_dir / TOKENS_FILE)) as store:
        _run(parsed, store)
    return 0


def _add_arguments(verb: str, parser: Parser) -> None:
    if verb == "create":
        parser.add_argument("name", metavar="TENANT")
        parser.add_argument(
            "--role", choices=[role.value for role in Role], default=Role.USER.value, help="default: user"
        )
        parser.add_argument("--expires-in", metavar="SPAN", help="as 12h or 30d; default: never")
        parser.add_argument("--note", default="", help="what it is for")
    elif verb != "list":
        parser.add_argument("name", metavar="ID")
    if verb == "rotate":
        parser.add_argument("--overlap", metavar="SPAN", default="0s", help="how long the old one still works")


def _run(parsed: Namespace, store: TokenStore) -> None:
    match parsed.verb:
        case "create":
            check_tenant(parsed.name)
            lifetime = None if parsed.expires_in is None else read_span(parsed.expires_in)
            _warn_of_heritage(parsed.name, store)
            _show_new(store.create(parsed.name, Role(parsed.role), lifetime, parsed.note), parsed.as_json)
        case "rotate":
            _show_new(store.rotate(parsed.name, read_span(parsed.overlap)), parsed.as_json)
        case "revoke":
            _show([store.revoke(parsed.name)], parsed.as_json)
        case _:
            _show(store.entries(), parsed.as_json)


def _warn_of_heritage(tenant: str, store: TokenStore) -> None:
    """Say so where a name was somebody's before, whose tokens have all ended: all that is kept goes by the name."""
    before = [entry for entry in store.entries() if entry.tenant == tenant]
    if before and not any(entry.is_valid(time.time()) for entry in before):
        kept = "the programs, runs, texts and contexts that are kept of it"
        print(f"the tenant {tenant} had tokens before: who has this one gets {kept}", file=sys.stderr)


def read_span(text: str) -> float:
    """Return the seconds of a time like ``90s``, ``15m``, ``12h`` or ``30d``. Raises InvalidRequest."""
    match = SPAN.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"a time is a whole number with s, m, h or d behind it, as 30d, not {text!r}")
    return int(match[1]) * UNITS[match[2]]


def _show_new(made: NewToken, as_json: bool) -> None:
    if as_json:
        print_json({"token": made.token, **_plain(made.entry)})
        return
    print(made.token)
    print(f"{made.entry.id}: keep it now, it is not shown again")


def _show(entries: list[TokenEntry], as_json: bool) -> None:
    if as_json:
        print_json({"tokens": [_plain(entry) for entry in entries]})
        return
    rows = [(e.id, e.tenant, e.role, shown_time(e.created_at), _state(e), e.note) for e in entries]
    print_table(("ID", "TENANT", "ROLE", "MADE", "STATE", "NOTE"), rows)


def _plain(entry: TokenEntry) -> dict[str, object]:
    return {**vars(entry), "valid": entry.is_valid(time.time())}


def _state(entry: TokenEntry) -> str:
    if entry.revoked_at is not None:
        return f"revoked {shown_time(entry.revoked_at)}"
    if entry.expires_at is None:
        return "valid"
    return f"{'valid until' if entry.is_valid(time.time()) else 'expired'} {shown_time(entry.expires_at)}"
