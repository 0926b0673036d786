"""``inferd serve-draft``: a draft model for targets on other machines."""

from __future__ import annotations

import contextlib
import os

from inferd.protocol import Cancelled, InvalidRequest
from inferd_runtime.cli.interrupts import run_async
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.cli.parsing import Parser, add_json, add_settings, settings_of
from inferd_runtime.draft_models.options import DraftAddress
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.server.draft_server import DraftServer, draft_server

SETTINGS = (
    "model", "device", "dtype", "weights", "activations", "threads", "pages", "page_size", "token_budget", "kv_dtype", "graphs",
    "products", "engine_read", "engine_write", "draft_key_file", "tls_cert", "tls_key", "insecure", "log_format", "log_level",
)  # fmt: skip
LISTEN = "127.0.0.1:7071"
DESCRIPTION = """Draft for targets on other machines until Ctrl+C or SIGTERM.

A target uses it with `inferd serve --draft NAME,at=HOST:PORT`. Both sides need the same key: --draft-key-file names a file that
only its owner can read. This makes one: (umask 077; openssl rand -hex 32 > draft.key)"""


def serve_draft(argv: list[str]) -> int:
    """Serve until Ctrl+C or SIGTERM, which is how a server ends well."""
    parser = Parser("serve-draft", DESCRIPTION)
    parser.add_argument(
        "--listen", default=LISTEN, metavar="HOST:PORT", help=f"the address to listen on; default: {LISTEN}"
    )
    add_settings(parser, SETTINGS)
    add_json(parser, "once ready, print {host, port, pid, model}")
    parsed = parser.parse_args(argv)
    settings = settings_of(parsed)
    configure_logging(settings.log_format, settings.log_level)
    if len(settings.engine.model) != 1:
        raise InvalidRequest("a draft engine serves one model: start one for each")
    address = DraftAddress.parse(parsed.listen, first_port=0)
    with contextlib.suppress(KeyboardInterrupt, Cancelled), draft_server(settings, address) as server:
        _announce(server, address, parsed.as_json)
        run_async(server.serve)
    return 0


def _announce(server: DraftServer, address: DraftAddress, as_json: bool) -> None:
    if as_json:
        print_json({"host": address.host, "port": server.port, "pid": os.getpid(), "model": server.terms.model})
    else:
        say(f"inferd drafts with {server.terms.model} on {address.host}:{server.port}")
