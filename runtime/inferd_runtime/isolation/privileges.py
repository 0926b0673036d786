"""Giving up privileges: setuid programs, capabilities, the user."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from inferd_runtime.isolation.kernel import Kernel

PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 23, 24, 38
MAX_CAPABILITIES = 64
CAPABILITY_VERSION = 0x20080522
FIRST_OWN_USER = 0x6000_0000
"""User ids from here on belong to nobody: each process that gives up root takes the one of its process id."""
NOBODY = 65534
STATUS = Path("/proc/self/status")


class _CapabilityHeader(ctypes.Structure):
    """``struct __user_cap_header_struct``."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """``struct __user_cap_data_struct``."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def forbid_new_privileges(kernel: Kernel) -> None:
    """Have setuid programs and file capabilities give nothing to this process and its children, for good."""
    kernel.prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(kernel: Kernel) -> None:
    """Give up all capabilities, those that could come back included."""
    if effective_capabilities():  # else there is nothing to give up, and no right to say so
        drop_bounding_set(kernel)
    kernel.capset(_CapabilityHeader(CAPABILITY_VERSION, 0), (_Sets * 2)())


def drop_bounding_set(kernel: Kernel) -> None:
    """Have no program that this process may ever start give it a capability."""
    for capability in range(MAX_CAPABILITIES):
        try:
            kernel.prctl(PR_CAPBSET_READ, capability)
        except OSError:  # there is none of that number, nor of a higher one
            return
        kernel.prctl(PR_CAPBSET_DROP, capability)


def effective_capabilities() -> int:
    """Return this process's effective capabilities as bits."""
    return next(int(line[7:], 16) for line in STATUS.read_text().splitlines() if line.startswith("CapEff:"))


def become_nobody(kernel: Kernel) -> None:
    """Become a user that no other process is. The capabilities go with root. Raises OSError if there is no such user."""
    drop_bounding_set(kernel)
    for user in (FIRST_OWN_USER + os.getpid(), NOBODY):
        try:
            os.setresgid(user, user, user)
            break
        except OSError:  # a container's users may be few
            if user == NOBODY:
                raise
    os.setgroups([])
    os.setresuid(user, user, user)
    kernel.prctl(PR_SET_DUMPABLE, 1)  # its files in /proc are its own then, not root's
