"""``inferd secret``: keep, list and remove secrets that programs use by name, in a server's data folder, while it runs or not."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from contextlib import closing

from inferd_runtime.cli.output import print_json, print_table, shown_time
from inferd_runtime.cli.parsing import Parser, add_verbs, settings_of
from inferd_runtime.server.tenancy.secret_store import ALL_TENANTS, SecretEntry, SecretStore
from inferd_runtime.server.tokens_file import check_tenant

DESCRIPTION = """Secrets of the server whose data folder this is: programs put them into requests by name and never see them.

A secret is read from standard input, or asked for; it is no argument, because others could see that. It is never shown again.
A change counts at once; nothing has to be restarted."""
VERBS = {
    "set": "keep the secret NAME, in place of an older one",
    "list": "list secrets; never their text",
    "rm": "forget the secret NAME",
}


def secret(argv: list[str]) -> int:
    """Run ``inferd secret VERB``; returns the exit code."""
    parser = Parser("secret", DESCRIPTION)
    for verb, one in add_verbs(parser, VERBS, ["data_dir", "secrets_file"]).items():
        _add_arguments(verb, one)
    parsed = parser.parse_args(argv)
    with closing(SecretStore(settings_of(parsed).secrets)) as store:
        _run(parsed, store)
    return 0


def _add_arguments(verb: str, parser: Parser) -> None:
    if verb == "list":
        return
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--tenant", default=ALL_TENANTS, help="whose programs may use it; default: those of all tenants"
    )
    if verb == "set":
        parser.add_argument(
            "--for", dest="origins", metavar="ORIGIN", action="append", required=True,
            help="where it may be sent, as https://api.example.com; may be given several times",
        )  # fmt: skip


def _run(parsed: Namespace, store: SecretStore) -> None:
    if parsed.verb == "list":
        _show(store.entries(), parsed.as_json)
        return
    if parsed.tenant != ALL_TENANTS:
        check_tenant(parsed.tenant)
    if parsed.verb == "set":
        _show([store.set(parsed.name, parsed.tenant, _read_value(), parsed.origins)], parsed.as_json)
    else:
        store.remove(parsed.name, parsed.tenant)


def _read_value() -> str:
    text = getpass.getpass("secret: ") if sys.stdin.isatty() else sys.stdin.readline()
    return text.rstrip("\r\n")


def _show(entries: list[SecretEntry], as_json: bool) -> None:
    if as_json:
        print_json({"secrets": [vars(entry) for entry in entries]})
        return
    rows = [(e.name, e.tenant, shown_time(e.changed_at), " ".join(e.origins)) for e in entries]
    print_table(("NAME", "TENANT", "CHANGED", "FOR"), rows)
