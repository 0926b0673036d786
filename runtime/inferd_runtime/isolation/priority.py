"""What a child gets of the processors while others want them, too."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

BEHIND_OTHERS = 10
"""The nice value of what runs or reads what strangers send: a tenth of the weight of engine and gateway."""
AUTOGROUP = Path("/proc/self/autogroup")
ATTEMPTS, AGAIN_SECONDS = 10, 0.11
"""The kernel lets all who are not root set one value in 0.1 s, and says EAGAIN to the others."""


def step_behind_others() -> None:
    """Leave the processors to the processes that serve everybody, where they are short. It cannot be taken back.

    Where the kernel divides its time among sessions first (sched(7), autogroups), a nice value counts among the processes of one
    only; the session that this process leads then steps back, too.
    """
    os.nice(BEHIND_OTHERS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # the kernel has no such groups
            _set_session_back()


def _set_session_back() -> None:
    for _ in range(ATTEMPTS):
        try:
            AUTOGROUP.write_text(str(BEHIND_OTHERS))
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(AGAIN_SECONDS)
