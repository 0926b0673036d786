"""How a runtime starts its children."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from inferd_runtime.isolation.order import Launch
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.sandbox.worker_start import WorkerBounds, WorkerLinks, WorkerStart, worker_launch
from inferd_runtime.server.engine_process.command import EngineStart, engine_launch
from inferd_runtime.server.engine_process.context_secrets import context_store
from inferd_runtime.server.engine_process.draft_secrets import draft_secrets
from inferd_runtime.server.tokens_file import load_tenancy
from inferd_runtime.settings.settings import Settings


@dataclass(frozen=True)
class Commands:
    """How the children are started: ``engine(endpoint, key)``; ``worker(links)``, which may take as long as a build."""

    engine: Callable[[str, str], Launch]
    worker: Callable[[WorkerLinks], Launch]


def default_commands(settings: Settings) -> Commands:
    """Return how the real engine and the real sandbox worker are started."""
    serving = replace(settings.engine, tenancy=load_tenancy(settings), snapshots=settings.contexts)
    drafts, contexts = draft_secrets(settings), context_store(settings)

    def engine(endpoint: str, key: str) -> Launch:
        return engine_launch(EngineStart(endpoint, key, serving, settings.require_isolation, drafts, contexts))

    def worker(links: WorkerLinks) -> Launch:
        bounds = WorkerBounds(settings.runs_per_worker, settings.worker_memory_mb)
        return worker_launch(WorkerStart(links, str(ensure_runner())), bounds, require_all=settings.require_isolation)

    return Commands(engine, worker)
