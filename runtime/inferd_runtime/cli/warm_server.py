"""The process of a server that ``inferd run --keep-warm`` leaves behind; its settings come on standard input."""

from __future__ import annotations

import contextlib
import sys

from inferd.protocol import Cancelled
from inferd_runtime.cli.interrupts import on_first_sigterm, run_async
from inferd_runtime.isolation.settings_json import decode_settings
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.server.gateway.app import Gateway, serve
from inferd_runtime.settings.settings import Settings


def main() -> None:
    """Serve until it has been idle for long enough, or SIGTERM."""
    settings = decode_settings(sys.stdin.buffer.read(), Settings)
    configure_logging(settings.log_format, settings.log_level)

    def ready(gateway: Gateway) -> None:
        on_first_sigterm(gateway.stopping.set)

    with contextlib.suppress(KeyboardInterrupt, Cancelled):
        run_async(serve, settings, ready)


if __name__ == "__main__":
    main()
