"""The limit on open files of this process, which its children inherit."""

from __future__ import annotations

import resource
import sys

OPEN_MAX = 10240
"""What macOS certainly grants, whose hard limit is infinite and refused as a soft one (its ``sys/syslimits.h``)."""


def raise_file_limit() -> int:
    """Raise the soft limit on open files as far as the system lets it; returns the new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if sys.platform == "linux" else max(soft, min(hard, OPEN_MAX))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
