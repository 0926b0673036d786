"""Runs a module in a process that cannot outlive its parent: ``python -m inferd_runtime.server.processes.tether PARENT
MODULE ...``.

On Linux the kernel kills the process when its parent dies (``PR_SET_PDEATHSIG``): that holds when the parent was killed
with SIGKILL, and when this process hangs in native code with the GIL held, where a thread that watches a pipe would not
run. Elsewhere a thread looks at the parent's pid. The launcher sets this in the child itself, because a ``preexec_fn`` is
unsafe in a parent that has threads. A MODULE that ends in ``.py`` is run by path.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0


def tethered(*command: str) -> list[str]:
    """Return the command line that runs a module with its arguments in a child of this process."""
    return [sys.executable, "-m", "inferd_runtime.server.processes.tether", str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """Make this process end when ``parent`` does."""
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


def main() -> None:
    """Tie this process to its parent, then become the module."""
    _, parent, module, *arguments = sys.argv
    die_with(int(parent))
    sys.argv = [module, *arguments]
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
