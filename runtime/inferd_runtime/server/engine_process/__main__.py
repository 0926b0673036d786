"""``python -m inferd_runtime.server.engine_process --endpoint ipc://FILE --settings JSON``."""

from __future__ import annotations

import sys

from inferd_runtime.server.engine_process.command import run_command
from inferd_runtime.server.processes.stop_request import StopRequest
from inferd_runtime.settings.settings import EngineSettings


def serve(endpoint: str, settings: EngineSettings) -> None:
    """Serve as :func:`~inferd_runtime.server.engine_process.boot.serve`; torch is loaded once signals are heeded."""
    stop = StopRequest()
    from inferd_runtime.server.engine_process.boot import serve as serve_engine

    serve_engine(endpoint, settings, stop)


if __name__ == "__main__":
    sys.exit(run_command(serve))
