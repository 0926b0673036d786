"""What a program returns beside its ``main``: Pie's ``set_return``."""

from __future__ import annotations

from inferd.program.pie import RETURNED
from inferd.transport import current_port


def set_return(value: str) -> None:
    """Set what the run returns if ``main`` returns None. The last one holds."""
    current_port().shared[RETURNED] = value


def get_return_value() -> str | None:
    """Return what was set."""
    value: str | None = current_port().shared.get(RETURNED)
    return value
