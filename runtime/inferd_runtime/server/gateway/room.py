"""How many connections the gateway takes, by the settings and by how many files may be open."""

from __future__ import annotations

from inferd.protocol import MAX_EXPORT_BYTES
from inferd_runtime.server.connections.connection_table import TableLimits
from inferd_runtime.server.connections.deadlines import Patience
from inferd_runtime.server.tenancy.tenant_use import SharedSizes
from inferd_runtime.settings.settings import Settings

RESERVED_FILES = 256
"""Left for everything but clients: children, databases, the engine's and the workers' sockets, logs."""
FILES_OF_A_SESSION = 4
"""What a script's session opens: its connection, and a ZeroMQ socket with a mailbox, its link, and one to spare."""
UNAUTHENTICATED_PART, MOST_UNAUTHENTICATED = 4, 512
"""One connection in so many, and at most so many in all, may be unauthenticated."""


def connections_at_most(settings: Settings, files: int) -> int:
    """Return how many connections may be open when ``files`` files may be."""
    return max(min(settings.max_connections, (files - RESERVED_FILES) // FILES_OF_A_SESSION), UNAUTHENTICATED_PART)


def unauthenticated_at_most(settings: Settings, files: int) -> int:
    """Return how many of these may be unauthenticated."""
    return min(connections_at_most(settings, files) // UNAUTHENTICATED_PART, MOST_UNAUTHENTICATED)


def table_limits(settings: Settings, files: int) -> TableLimits:
    """Return the limits of unauthenticated connections."""
    unauthenticated = unauthenticated_at_most(settings, files)
    patience = Patience(settings.header_s, settings.body_s, settings.keep_alive_s, settings.unread_s)
    return TableLimits(patience, unauthenticated, max(unauthenticated // 2, 1))


def shared_sizes(settings: Settings, files: int) -> SharedSizes:
    """Return the limits that all tenants share."""
    known = connections_at_most(settings, files) - unauthenticated_at_most(settings, files)
    one_body = max(settings.max_body_bytes, MAX_EXPORT_BYTES)
    body_bytes = max(settings.max_body_total, 2 * one_body)
    return SharedSizes(min(settings.max_sockets, known), known, body_bytes, one_body)
