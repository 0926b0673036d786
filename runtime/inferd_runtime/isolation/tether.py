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

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0


def die_with(parent: int) -> None:
    """Make this process end when ``parent`` does. A change of user undoes it, so it comes after that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
