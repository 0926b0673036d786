"""A process that cannot outlive its parent.

On Linux the kernel kills the process when its parent dies (``PR_SET_PDEATHSIG``): that holds when the parent was killed
with SIGKILL, and when this process hangs in native code with the GIL held, where a thread that watches a pipe would not
run. Elsewhere a thread looks at the parent's pid. The child sets this itself, because a ``preexec_fn`` is unsafe in a parent
that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0
LOOK_SECONDS = 0.25
SUPERVISOR_SECONDS = 2.0
"""How much longer than a parent its supervisor may live where both end together."""
ENDED_STATES = ("Z", "X")
"""Of /proc: a process that has ended, and that nobody has waited for yet."""


def die_with(parent: int) -> None:
    """Make this process end when ``parent`` does. A change of user undoes it, so it comes after that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def outlive(parent: int, supervisor: int) -> None:
    """Make this process end when ``parent`` does, unless ``supervisor``, which started that, has ended as well: then it goes on.

    A thread looks at both: for processes that run no strangers' code and no long native calls.
    """
    threading.Thread(target=_watch_both, args=(parent, supervisor), daemon=True).start()


def _watch_both(parent: int, supervisor: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    until = time.monotonic() + SUPERVISOR_SECONDS
    while is_alive(supervisor):
        if time.monotonic() > until:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def is_alive(pid: int) -> bool:
    """Return True if there is such a process, and it has not ended without anybody having noticed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or gone just now
        return sys.platform != "linux"
    return state.rpartition(")")[2].split()[0] not in ENDED_STATES


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
