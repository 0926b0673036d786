"""How an engine process, and a draft model's, is started, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.processes.child_protocol import exit_code
from inferd_runtime.settings.settings import EngineSettings

ENGINE_MODULE = "inferd_runtime.server.engine_process.engine_main"
DRAFT_MODULE = "inferd_runtime.server.engine_process.draft_process"


@dataclass(frozen=True)
class EngineStart:
    """Where an engine process listens (``ipc://FILE``), how it serves, and the key that only it and its parent hold.

    For an engine that is the key of :class:`~inferd_runtime.session.grants.SessionGrants`; for a draft model's process it is
    the identity of its parent's socket.
    """

    endpoint: str
    key: str
    settings: EngineSettings
    require_isolation: bool = False


def engine_launch(start: EngineStart) -> Launch:
    """Return how to start an engine process."""
    return Launch(ENGINE_MODULE, ChildKind.MODEL, settings=start, require_all=start.require_isolation)


def draft_launch(start: EngineStart) -> Launch:
    """Return how to start a draft model's process."""
    return Launch(DRAFT_MODULE, ChildKind.MODEL, settings=start, require_all=start.require_isolation)


def run_engine(child: Child, serve: Callable[[EngineStart], None]) -> int:
    """Call ``serve`` with what the child was told, and return the process's exit code."""

    def sealed() -> None:
        child.seal()
        serve(child.settings(EngineStart))

    return exit_code(sealed)
