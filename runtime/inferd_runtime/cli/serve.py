"""``inferd serve``: a shared runtime behind HTTP and WebSocket."""

from __future__ import annotations

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor

from inferd.protocol import Cancelled
from inferd_runtime.cli.interrupts import on_first_sigterm, run_async
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.cli.parsing import Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.progress import prepare_runner
from inferd_runtime.isolation.report import check_all, described, report
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.models.names import check_names
from inferd_runtime.server.gateway.app import Gateway, serve as serve_gateway
from inferd_runtime.server.gateway.auth import token_path
from inferd_runtime.settings.settings import FIELDS, Settings
from inferd_runtime.settings.sources import unknown_variables

log = logging.getLogger("inferd.serve")
NOT_FOR_SERVERS = ("url", "server", "keep_warm")
DESCRIPTION = """Serve a runtime on this machine until Ctrl+C or SIGTERM.

After SIGTERM nothing is begun any more, and runs and answers have --drain-seconds to end; a second one, or Ctrl+C, ends them at
once.

Clients need the token: --token, INFERD_TOKEN, or else one that is generated and kept in the state directory, where the
other commands of this user find it."""


def serve(argv: list[str]) -> int:
    """Serve until Ctrl+C or SIGTERM, which is how a server ends well."""
    parser = Parser("serve", DESCRIPTION)
    add_settings(parser, [name for name in FIELDS if name not in NOT_FOR_SERVERS])
    add_json(parser, "once ready, print {url, pid, models, token_file}")
    parsed = parser.parse_args(argv)
    settings = settings_of(parsed)
    configure_logging(settings.log_format, settings.log_level)
    for text in unknown_variables(os.environ):
        log.warning("%s", text)
    check_names(model.name for model in settings.engine.models)
    prepare_runner()
    with ThreadPoolExecutor(1) as beside, contextlib.suppress(KeyboardInterrupt, Cancelled):
        found = beside.submit(report)  # two processes: the server starts meanwhile
        if settings.require_isolation:
            check_all(found.result())

        def ready(gateway: Gateway) -> None:
            on_first_sigterm(gateway.stopping.set)
            _announce(gateway, settings, parsed.as_json)
            log.info("layers: %s", described(found.result()))

        run_async(serve_gateway, settings, ready)
    return 0


def _announce(gateway: Gateway, settings: Settings, as_json: bool) -> None:
    names = [model.name for model in gateway.runtime.models.models]
    own = settings.token is None and settings.tokens_file is None
    token_file = str(token_path(settings.state_dir)) if own else None
    if as_json:
        print_json({"url": gateway.url, "pid": os.getpid(), "models": names, "token_file": token_file})
        return
    say(f"inferd serves {', '.join(names)} on {gateway.url}")
    if token_file is not None:
        print(f"token: {token_file}", flush=True)
