"""System calls that Python has no function for, on Linux."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

SYSCALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"pivot_root": 155, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "seccomp": 277},
}
"""Numbers that differ between processors."""
SYSCALLS_OF_ALL: Mapping[str, int] = {
    "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip
MNT_DETACH = 2


class NotSupported(OSError):
    """This system has not got what is asked for."""


def check_linux() -> None:
    """Raise NotSupported on another system than Linux."""
    if sys.platform != "linux":
        raise NotSupported("it needs Linux")


class Kernel:
    """Calls that raise OSError where they fail."""

    def __init__(self) -> None:
        """Raises NotSupported on another system than Linux."""
        check_linux()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self.machine = platform.machine()

    def prctl(self, option: int, first: int = 0, second: int = 0) -> int:
        """``prctl(2)``."""
        return self._checked(self._libc.prctl(option, *map(ctypes.c_ulong, (first, second, 0, 0))))

    def unshare(self, flags: int) -> None:
        """``unshare(2)``."""
        self._checked(self._libc.unshare(flags))

    def mount(self, source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        """``mount(2)``."""
        texts = [text.encode() for text in (source, target, kind)]
        self._checked(self._libc.mount(*texts, ctypes.c_ulong(flags), options.encode()))

    def unmount(self, target: str) -> None:
        """``umount2(2)``, lazily."""
        self._checked(self._libc.umount2(target.encode(), MNT_DETACH))

    def syscall(self, name: str, *arguments: Any) -> int:
        """Call by the system call's name. Raises NotSupported for a processor whose number of it is not known."""
        number = SYSCALLS_OF_ALL.get(name) or SYSCALLS.get(self.machine, {}).get(name)
        if number is None:
            raise NotSupported(f"it is not known for processors of the kind {self.machine}")
        wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
        return self._checked(self._libc.syscall(ctypes.c_long(number), *wide))

    def capset(self, header: ctypes.Structure, data: ctypes.Array[Any]) -> None:
        """``capset(2)``."""
        self._checked(self._libc.capset(ctypes.byref(header), data))

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
