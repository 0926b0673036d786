"""Landlock: what this process may do with files, TCP ports and other processes, whatever its user (Linux 5.13 and later).

The rights and structures are those of the kernel's ``include/uapi/linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inferd_runtime.isolation.kernel import Kernel

CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEVICE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""The rights that a rule about something else than a folder may give."""
FILE_RIGHTS: Mapping[int, int] = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights on files that a version of Landlock knows, from the version on that brought them."""
NETWORK_SINCE, NETWORK_RIGHTS = 4, 0b11
SCOPES_SINCE, ABSTRACT_SOCKETS, SIGNALS = 6, 0b01, 0b10
"""TCP ports to bind and connect; abstract sockets and signals of processes outside."""


class _Ruleset(ctypes.Structure):
    """``struct landlock_ruleset_attr``."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    """``struct landlock_path_beneath_attr``."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version(kernel: Kernel) -> int:
    """Return the version of Landlock's interface. Raises OSError where there is none."""
    return kernel.syscall("landlock_create_ruleset", None, 0, CREATE_RULESET_VERSION)


@dataclass(frozen=True)
class Allowed:
    """Folders and files to read; to read and run; to read and write, but make none; to do everything with. ``network``: whether
    TCP ports may be used; ``abstract_sockets``: whether other processes' may.
    """

    readable: Iterable[str] = ()
    runnable: Iterable[str] = ()
    changeable: Iterable[str] = ()
    writable: Iterable[str] = ()
    network: bool = False
    abstract_sockets: bool = False


def restrict_files(kernel: Kernel, allowed: Allowed) -> int:
    """Let this process, from now on, use what is allowed, and no other file, TCP port or outer process.

    Returns Landlock's version: before 4 it says nothing about ports, before 6 nothing about processes. Raises OSError.
    """
    version = landlock_version(kernel)
    handled = max(rights for since, rights in FILE_RIGHTS.items() if since <= version)
    network = NETWORK_RIGHTS if version >= NETWORK_SINCE and not allowed.network else 0
    scopes = SIGNALS | (0 if allowed.abstract_sockets else ABSTRACT_SOCKETS)
    wanted = _Ruleset(handled, network, scopes if version >= SCOPES_SINCE else 0)
    size = 8 if version < NETWORK_SINCE else 16 if version < SCOPES_SINCE else 24
    ruleset = kernel.syscall("landlock_create_ruleset", ctypes.byref(wanted), size, 0)
    try:
        reading = READ_FILE | READ_DIR
        for paths, rights in (
            (allowed.readable, reading),
            (allowed.runnable, reading | EXECUTE),
            (allowed.changeable, reading | WRITE_FILE | TRUNCATE),
            (allowed.writable, handled),
        ):
            for path in paths:
                _allow(kernel, ruleset, path, rights & handled)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(kernel: Kernel, ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            rights &= OF_FILES
        rights |= WRITE_FILE if path == os.devnull else 0
        rule = _Rule(rights, folder)
        kernel.syscall("landlock_add_rule", ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)
