"""How many files this process and its children may have open."""

from __future__ import annotations

import resource
import sys

OPEN_MAX = 10240
"""What macOS certainly grants, whose hard limit is infinite and refused as a soft one (its ``sys/syslimits.h``)."""


def raise_file_limit() -> int:
    """Allow as many open files as the system does; returns how many. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if sys.platform == "linux" else max(soft, min(hard, OPEN_MAX))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
