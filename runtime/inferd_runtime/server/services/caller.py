"""The caller of a gateway operation."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.program.manifest import Manifest
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.tenancy.quotas import Role


@dataclass(frozen=True, eq=False)
class Caller:
    """A run, or a script's session, with what it may do. ``id``: the run's, or the session's name.

    Each attempt of a run is a caller of its own, and callers are compared by identity: they are good keys. ``manifest``: the
    program's; None for a script. ``limits``: the run's. ``key``: :attr:`offer_key` of a run that is in another process.
    """

    tenant: str
    id: str
    role: Role = Role.USER
    run: Run | None = field(default=None, repr=False)
    manifest: Manifest | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    key: str = ""

    @property
    def offer_key(self) -> str:
        """The key under which clients offer it servers of tools, "" if there is none."""
        return self.key if self.run is None else self.run.mcp
