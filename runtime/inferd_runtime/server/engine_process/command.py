"""The command line of an engine process, and of a draft model's: an endpoint, and the settings as one value in JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from inferd_runtime.server.processes.child_protocol import exit_code, parse_settings, settings_argument
from inferd_runtime.settings.settings import EngineSettings

ENGINE_MODULE = "inferd_runtime.server.engine_process"
DRAFT_MODULE = "inferd_runtime.server.engine_process.draft_process"


def engine_arguments(endpoint: str, settings: EngineSettings) -> list[str]:
    """Return the arguments that :func:`run_command` reads. Everybody on this machine can see them: they hold no secret."""
    return ["--endpoint", endpoint, "--settings", settings_argument(settings)]


def run_command(serve: Callable[[str, EngineSettings], None], argv: Sequence[str] | None = None) -> int:
    """Call ``serve`` with the endpoint and the settings of a command line, and return the process's exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True, help="where to listen: ipc://FILE")
    parser.add_argument("--settings", default="{}", help="JSON; what it leaves out has its default")
    options = parser.parse_args(argv)
    return exit_code(lambda: serve(options.endpoint, parse_settings(options.settings, EngineSettings)))
