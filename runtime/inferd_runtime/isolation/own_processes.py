"""Processes that end with a child, also those that have left its session and its group: it has a namespace of process ids.

The process that makes such a namespace is not in it. So there are three: the one that the parent has started waits for the
first one inside, with which the kernel ends all others there; and that one waits for the child itself. Where namespaces are
not to be had, one process waits for the child, and adopts and ends what it leaves; unless it is killed itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from inferd_runtime.isolation.kernel import Kernel
from inferd_runtime.isolation.namespaces import leave_for_own_processes, mount_own_processes
from inferd_runtime.isolation.privileges import drop_capabilities
from inferd_runtime.isolation.tether import die_with

PR_SET_CHILD_SUBREAPER = 36
BY_SIGNAL = 128
"""Added to a signal's number: the exit code of a process that waited for a child which the signal ended."""
OUTSIDE = 0
"""The id of a parent that is in no namespace of this process."""


def enter_own_processes(kernel: Kernel, parent: int, *, own_users: bool) -> None:
    """Go on as a process in a new namespace; those that wait for it never return. Call it while there is one thread.

    ``parent``: the process with which they end; 0 for none. Raises OSError, with everything as it was, where there can be none.
    """
    _try(lambda: leave_for_own_processes(kernel, own_users=own_users))
    leave_for_own_processes(kernel, own_users=own_users)
    _go_on_in_child(kernel, parent)
    _go_on_in_child(kernel, OUTSIDE)
    with contextlib.suppress(OSError):  # a container may have hidden parts of its own
        mount_own_processes(kernel)


def adopt_descendants(kernel: Kernel, parent: int) -> None:
    """Go on as a process whose descendants are ended after it, unless the process that waits for it is killed."""
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    _go_on_in_child(kernel, parent)
    die_with(os.getppid())


def _try(step: Callable[[], None]) -> None:
    """Raise the OSError that a step raises, tried in a process of its own: it may fail half-way."""
    child = os.fork()
    if not child:
        number = errno.EIO
        try:
            step()
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))


def _go_on_in_child(kernel: Kernel, parent: int) -> None:
    """Return in a new process. This one ends as that one does, and with ``parent``; a request to end is for the other."""
    child = os.fork()
    if not child:
        return
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            drop_capabilities(kernel)
        if parent or os.getpid() == 1:
            die_with(parent)
        code = _wait_for(child)
        _end_adopted()
        _end_as(code)
    finally:
        os._exit(BY_SIGNAL)  # whatever failed: never as the child


def _wait_for(child: int) -> int:
    """Return the exit code of a process, once it has ended. Others that have been left to this one are waited for as well."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _end_adopted() -> None:
    """Kill what is left to this process, and wait for it: of those that end, more may come."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                os.kill(child, signal.SIGKILL)
            os.wait()


def _children() -> Iterator[int]:
    """Yield this process's children; in a namespace none, whose end is theirs."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(file.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                yield int(file.parent.name)


def _end_as(code: int) -> None:
    """End with an exit code, or by the signal that it stands for; the first process of a namespace cannot end itself by one."""
    number = -code if code < 0 else code - BY_SIGNAL
    if number > 0 and os.getpid() != 1:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL's cannot be set
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code if code >= 0 else BY_SIGNAL - code)
