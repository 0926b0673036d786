"""Opening sessions on a hub that has no gateway."""

from __future__ import annotations

import itertools

from inferd_runtime.session import wire
from inferd_runtime.session.grants import SessionGrants

KEY = b"a key of the tests, 32 bytes long"
_numbers = itertools.count(1)


def new_grants() -> SessionGrants:
    """What a hub is made with, so that :func:`opening` opens sessions on it."""
    return SessionGrants(KEY)


def opening(tenant: str, label: str = "", *, gateway: bool = False) -> list[bytes]:
    """The frames that open a new session."""
    grant = SessionGrants(KEY).issue(f"test/{next(_numbers)}", tenant, gateway=gateway)
    return wire.open_frames(grant, label)
