"""What a program may know of the runtime that it runs in."""

from __future__ import annotations

import uuid
from typing import NoReturn

from inferd.protocol import PROTOCOL_VERSION
from inferd.transport import current_port
from inferlet.model import served_models
from inferlet.refused import refuse

METADATA = "programs keep contexts (Context.save) and durable queues (inferd.queue), no other values"
USER = "user"
"""What every program is told: the runtime tells none its tenant."""


def version() -> str:
    """Return the version of inferd's protocol, ``inferd/1``."""
    return f"inferd/{PROTOCOL_VERSION}"


def instance_id() -> str:
    """Return a name that is this run's alone."""
    known: str = current_port().shared.setdefault("inferlet instance", str(uuid.uuid4()))
    return known


def username() -> str:
    """Return ``user``."""
    return USER


def models() -> list[str]:
    """Return the names of the models that are served, the default one first."""
    return [info.name for info in served_models(current_port())]


def metadata_put(namespace: str, key: str, value: bytes) -> NoReturn:
    """Refuse, as the two below."""
    refuse("runtime.metadata_put", METADATA)


def metadata_get(namespace: str, key: str) -> NoReturn:
    """Refuse."""
    refuse("runtime.metadata_get", METADATA)


def metadata_delete(namespace: str, key: str) -> NoReturn:
    """Refuse."""
    refuse("runtime.metadata_delete", METADATA)
