"""Namespaces: no network, no System V objects of others, and a file system that holds what is needed and nothing else."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from inferd_runtime.isolation.kernel import Kernel

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
APART = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE, O_CLOEXEC = -100, 0x1000, 0x8000, 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
"""MOUNT_ATTR_RDONLY, _NOSUID, _NODEV, _NOEXEC."""
STAGE = "/tmp"
"""Where the new root is put together, in this process's own view: any folder that every system has."""
SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null",
)  # fmt: skip
OWN_PROCESS = "/proc/self"
FOLDERS_FOR_ALL = 0o022


class _MountAttributes(ctypes.Structure):
    """``struct mount_attr``."""

    _fields_ = (
        ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64), ("userns", ctypes.c_uint64),
    )  # fmt: skip


def leave_shared_namespaces(kernel: Kernel, *, own_users: bool) -> None:
    """Move into namespaces of this process alone. ``own_users``: with a user namespace, which needs no privilege."""
    _leave(kernel, APART, own_users=own_users)


def leave_for_own_processes(kernel: Kernel, *, own_users: bool) -> None:
    """Have this process's next children be in a namespace of process ids, and itself have mounts of its own."""
    _leave(kernel, CLONE_NEWPID | CLONE_NEWNS, own_users=own_users)


def mount_own_processes(kernel: Kernel) -> None:
    """Have ``/proc`` show the namespace of process ids that this process is in."""
    kernel.mount("none", "/", "none", MS_REC | MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _leave(kernel: Kernel, flags: int, *, own_users: bool) -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(flags | (CLONE_NEWUSER if own_users else 0))
    if own_users:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def enter_own_root(kernel: Kernel, readable: Iterable[str], sockets: Iterable[str]) -> None:
    """Make a root folder of these folders and files, all of them read-only, and leave the old one behind.

    ``sockets``: folders with sockets to connect to. Call it in a mount namespace of this process alone. Raises OSError, with
    everything as it was, where that cannot be done.
    """
    kernel.mount("none", "/", "none", MS_REC | MS_PRIVATE)
    sources = {path: (path, NO_SETUID) for path in outermost(readable)}
    sources |= {path: (path, NO_SETUID | NO_PROGRAMS) for path in sockets}
    sources[OWN_PROCESS] = (f"/proc/{os.getpid()}", NO_SETUID | NO_PROGRAMS)
    trees = {target: _detached(kernel, source, READ_ONLY | flags) for target, (source, flags) in sources.items()}
    kernel.mount("none", STAGE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,mode=755")
    try:
        os.umask(FOLDERS_FOR_ALL)  # whatever the server's: this process is another user soon
        _attach(kernel, trees)
        os.chdir(STAGE)
        kernel.syscall("pivot_root", b".", b".")
    except OSError:
        kernel.unmount(STAGE)
        raise
    kernel.unmount(".")
    os.chdir("/")
    _set_attributes(kernel, AT_FDCWD, b"/", 0, READ_ONLY | NO_SETUID | NO_DEVICES | NO_PROGRAMS)


def needed_folders(own: Iterable[str]) -> list[str]:
    """Return what Python needs to go on importing: its folders, the system's libraries, and ``own``; what exists of them."""
    wanted = [*SYSTEM, *sys.path, *_folders_of_libraries(), *own]
    return [path for path in dict.fromkeys(map(os.path.abspath, wanted)) if path != "/" and os.path.exists(path)]


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in no other one of them."""
    kept: list[str] = []
    for path in sorted(set(paths), key=len):
        if not any(path.startswith(f"{folder}/") for folder in kept):
            kept.append(path)
    return kept


def _folders_of_libraries() -> list[str]:
    """Return the folders of all libraries that are loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    mapped = (line.split(maxsplit=5)[5:] for line in lines)
    return list({os.path.dirname(path[0]) for path in mapped if path and ".so" in path[0]})


def _detached(kernel: Kernel, source: str, attributes: int) -> int:
    """Return a descriptor of a mount of ``source`` that is nowhere yet."""
    flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE
    tree = kernel.syscall("open_tree", AT_FDCWD, os.path.realpath(source).encode(), flags)
    _set_attributes(kernel, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes)
    return tree


def _attach(kernel: Kernel, trees: Mapping[str, int]) -> None:
    for target, tree in trees.items():
        place = f"{STAGE}{target}"
        if os.path.isdir(f"/proc/self/fd/{tree}"):
            os.makedirs(place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        kernel.syscall("move_mount", tree, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)


def _set_attributes(kernel: Kernel, folder: int, path: bytes, flags: int, attributes: int) -> None:
    wanted = _MountAttributes(attributes, 0, 0, 0)
    kernel.syscall("mount_setattr", folder, path, flags, ctypes.byref(wanted), ctypes.sizeof(wanted))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
