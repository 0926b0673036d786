"""``inferd tenants``: what each tenant may have, and has; and the end of all that one runs."""

from __future__ import annotations

from urllib.parse import quote

from inferd_runtime.cli.answers import Stopped, Tenant, Tenants, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, print_table, say
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of

SHOWN = ("runs", "waiting", "sockets", "connections", "launches_per_minute", "tokens_per_minute")
TOLD = "{tenant}: {runs} runs and {responses} responses in the background were asked to end"


def tenants(argv: list[str]) -> int:
    """Show use and quotas: of all tenants with an admin's token, else of one's own. ``--stop``: end a tenant's runs."""
    parser = Parser("tenants", "What tenants use of what they may have: all of them for an admin, else your own.")
    parser.add_argument("--stop", metavar="TENANT", help="end all that a tenant runs: for an admin")
    add_settings(parser, CLIENT_SETTINGS)
    add_json(
        parser, "print {tenants: [{tenant, quotas, use}]}, with every quota; with --stop {tenant, runs, responses}"
    )
    parsed = parser.parse_args(argv)
    server = Server.of(settings_of(parsed))
    if parsed.stop is not None:
        stopped = server.post(f"/v1/tenants/{quote(parsed.stop, safe='')}/stop")
        print_json(stopped) if parsed.as_json else say(TOLD.format_map(answer_as(Stopped, stopped)))
        return 0
    answer = server.get("/v1/tenants")
    if parsed.as_json:
        print_json(answer)
        return 0
    heads = ["TENANT", *(name.upper().replace("_", " ") for name in SHOWN)]
    rows = answer_as(Tenants, answer)["tenants"]
    print_table(heads, [[one["tenant"], *(_cell(one, name) for name in SHOWN)] for one in rows])
    return 0


def _cell(tenant: Tenant, name: str) -> str:
    most = tenant["quotas"].get(name)
    used = tenant["use"].get(name)
    return f"{'-' if used is None else format(used, '.0f')}/{most or 'no limit'}"
