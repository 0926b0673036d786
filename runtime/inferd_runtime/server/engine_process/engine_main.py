"""The engine process's first module: heed signals, then load the rest."""

from __future__ import annotations

from inferd_runtime.interpreter import loading
from inferd_runtime.isolation.child import Child
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.phases import Phases
from inferd_runtime.server.engine_process.command import EngineStart, run_engine
from inferd_runtime.server.processes.stop_request import StopRequest


def serve(start: EngineStart) -> None:
    """Serve as :func:`~inferd_runtime.server.engine_process.boot.serve`; torch is loaded once signals are heeded."""
    phases = Phases()
    # The gateway takes the lines over.
    configure_logging("json", "info" if start.settings.timings else "warning")
    stop = StopRequest()
    with loading():
        from inferd_runtime.server.engine_process.boot import serve as serve_engine

    phases.end("imports")
    serve_engine(start, stop, phases)


def child_main(child: Child) -> int:
    """Serve one gateway. Returns the exit code."""
    return run_engine(child, serve)
