"""How an engine process, and a draft model's, is started, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from inferd_runtime.file_cache import cache_folder
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.model_files import model_access
from inferd_runtime.isolation.order import Access, Launch
from inferd_runtime.kv.context_store import ContextStore
from inferd_runtime.server.processes.child_protocol import exit_code
from inferd_runtime.settings.settings import EngineSettings

ENGINE_MODULE = "inferd_runtime.server.engine_process.engine_main"
DRAFT_MODULE = "inferd_runtime.server.engine_process.draft_process"


@dataclass(frozen=True)
class DraftSecrets:
    """The key that is shared with draft engines on other machines, and the certificates in PEM format that are trusted to be
    theirs ("": those that the system trusts).
    """

    key: str = ""
    trusted: str = ""


NO_SECRETS = DraftSecrets()
LOCAL = ContextStore()


@dataclass(frozen=True)
class EngineStart:
    """Where an engine process listens (``ipc://FILE``), how it serves, and the key that only it and its parent hold.

    For an engine that is the key of :class:`~inferd_runtime.session.grants.SessionGrants`; for a draft model's process it is
    the identity of its parent's socket. ``drafts``: what it needs for draft engines on other machines. ``contexts``: where saved
    contexts lie instead of in the settings' folder.
    """

    endpoint: str
    key: str
    settings: EngineSettings
    require_isolation: bool = False
    drafts: DraftSecrets = NO_SECRETS
    contexts: ContextStore = LOCAL


def engine_launch(start: EngineStart) -> Launch:
    """Return how to start an engine process."""
    return _launch(ENGINE_MODULE, start)


def draft_launch(start: EngineStart) -> Launch:
    """Return how to start a draft model's process."""
    return _launch(DRAFT_MODULE, start)


def _launch(module: str, start: EngineStart) -> Launch:
    own = [Path(start.endpoint.removeprefix("ipc://")).parent, *map(Path, filter(None, [start.contexts.folder]))]
    access = engine_access(start.settings, *own)
    return Launch(module, ChildKind.MODEL, settings=start, access=access, require_all=start.require_isolation)


def engine_access(settings: EngineSettings, *folders: Path) -> Access:
    """Return the files of a process that serves models: theirs, adapters, caches, saved contexts, ``folders`` of its own."""
    named = [Path(model.name).expanduser() for model in (*settings.model, *(draft.model for draft in settings.draft))]
    adapters = [adapter.folder for adapter in settings.adapter]
    own = [folder for folder in (cache_folder(), settings.snapshots, *folders) if folder is not None]
    own += map(Path, settings.engine_write)
    access = model_access([*named, *adapters, *map(Path, settings.engine_read)], own)
    return replace(access, abstract_sockets=settings.tensor_parallel > 1)


def run_engine(child: Child, serve: Callable[[EngineStart], None]) -> int:
    """Call ``serve`` with what the child was told, and return the process's exit code."""

    def sealed() -> None:
        child.seal()
        serve(child.settings(EngineStart))

    return exit_code(sealed)
