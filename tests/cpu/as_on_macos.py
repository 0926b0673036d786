"""Run by test_portable.py: imports every module of the three packages and runs ``inferd``, as if on macOS.

All is imported once before, so that the libraries are loaded: what they do on macOS is theirs. Then ``sys.platform`` is darwin,
triton is not installed, the names that Python has on Linux only are gone, and /proc, /sys and ``ctypes.CDLL(None)`` cannot be
opened.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import mmap
import os
import pkgutil
import re
import resource
import select
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any

PACKAGES = ("inferd", "inferlet", "inferd_grammar", "inferd_runtime")
LINUX_ONLY: dict[ModuleType, str] = {
    asyncio: r"PidfdChildWatcher",
    fcntl: r"F_(OFD_|NOTIFY|ADD_SEALS|GET_SEALS|SEAL_|[GS]ET(PIPE_SZ|SIG|LEASE))|DN_",
    mmap: r"MADV_(HUGEPAGE|NOHUGEPAGE|MERGEABLE|DONTFORK|REMOVE|DONTDUMP|HWPOISON)|MAP_(POPULATE|STACK)",
    os: r"eventfd|EFD_|memfd_|MFD_|pidfd_|P_PIDFD|posix_fa|POSIX_FADV|splice|SPLICE_|copy_file_range|getrandom|GRND_|"
    r".*xattr|XATTR_|fdatasync|pipe2|O_(DIRECT|TMPFILE|PATH|NOATIME|RSYNC|LARGEFILE)|[gs]etres[ug]id|CLONE_|setns|unshare|"
    r"RTLD_DEEPBIND|RWF_|SCHED_(BATCH|IDLE|RESET)|sched_([gs]etaffinity|.*param|.*scheduler|rr_get_interval)",
    resource: r"prlimit|RLIMIT_(NICE|RT|SIGPENDING|MSGQUEUE|OFILE)|RUSAGE_THREAD",
    select: r"epoll|EPOLL",
    signal: r"sigtimedwait|sigwaitinfo|pidfd_|SIGPWR|SIGSTKFLT|SIGRT|SIGPOLL|SIGCLD",
    socket: r"AF_(NETLINK|VSOCK|PACKET|ALG|CAN|TIPC|RDS|QIPCRTR)|SO_(PEERCRED|PASSCRED|BINDTODEVICE|DOMAIN|PROTOCOL|MARK)|"
    r"SOCK_(CLOEXEC|NONBLOCK)|MSG_(CMSG_CLOEXEC|ERRQUEUE|MORE)",
    time: r"CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
}
NOT_ON_A_HOST = ("inferd_runtime.sandbox.runner.", "inferd_runtime.kernels.triton")
"""The guest's modules and the kernels for GPUs."""
OPTIONAL = (
    "inferd.outlines",
    "inferd_grammar.backends.outlines",
    "inferd_grammar.backends.xgrammar",
    "inferd_runtime.cluster.ray_serve.cluster",
    "inferd_runtime.cluster.ray_serve.deployments",
)
"""Modules that need a package which may not be installed."""


def pretend() -> None:
    """Make this process look like macOS to Python code, as far as names and files go."""
    for module, pattern in LINUX_ONLY.items():
        for name in [name for name in vars(module) if re.match(pattern, name)]:
            delattr(module, name)
    sys.platform = "darwin"
    sys.modules["triton"] = None  # type: ignore[assignment] # the import system's way to say that it is not there
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(arguments[0])
    if event == "ctypes.dlopen" and arguments[0] is None:
        raise OSError("the C library of Linux is not here")


def import_all() -> list[str]:
    """Import every module that a host needs; returns their names."""
    names: list[str] = []
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(NOT_ON_A_HOST) and module.name not in OPTIONAL:
                importlib.import_module(module.name)
                names.append(module.name)
    return names


def forget_all() -> None:
    """Have the next import of each of our modules run it again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


if __name__ == "__main__":
    import_all()
    forget_all()
    pretend()
    print("\n".join(import_all()))
    main = importlib.import_module("inferd_runtime.cli").main
    sys.exit(max(main(arguments.split()) for arguments in ("--version", "--help", "run --help", "serve --help")))
