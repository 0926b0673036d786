"""What child processes get of the processors while others want them, too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LAST = 19
BEHIND = 5
"""How much higher the nice value of what steps behind is: it gets a third of what engine and gateway do."""


def set_behind(leader: int, behind: bool) -> bool:
    """Have a child that leads a session step behind this process where the processors are short, or beside it again.

    Where the kernel divides its time among sessions first (sched(7), autogroups), a nice value counts in a session alone: so the
    child's session gets the value, too. Returns False where the system does not allow it: to step beside again takes root's
    rights, or such sessions.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = min(own + BEHIND, LAST) if behind else own
    session = Path(f"/proc/{leader}/autogroup")
    done = False
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, leader, wanted)
        done = True
    with contextlib.suppress(OSError):
        session.write_text(str(BEHIND if behind else 0))
        done = True
    return done
