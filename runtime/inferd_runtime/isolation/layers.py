"""The layers between a child process and the machine: put up one after the other, each reported by name.

A layer that the system does not offer is left out and reported with the reason; the others stand without it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inferd_runtime.isolation.call_rules import MISSING, REFUSED_TO_MODELS, rules_of
from inferd_runtime.isolation.kernel import Kernel, NotSupported
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.landlock import Allowed, restrict_files
from inferd_runtime.isolation.model_files import DEVICE_FILES, NETWORK_FILES, runnable, writable
from inferd_runtime.isolation.namespaces import OWN_PROCESS, enter_own_root, leave_shared_namespaces, needed_folders
from inferd_runtime.isolation.order import Access, ResourceLimits
from inferd_runtime.isolation.own_processes import adopt_descendants, enter_own_processes
from inferd_runtime.isolation.privileges import (
    become_nobody,
    drop_capabilities,
    effective_capabilities,
    forbid_new_privileges,
)
from inferd_runtime.isolation.seccomp import install_filter, install_refusals
from inferd_runtime.isolation.tether import die_with

NO_NEW_PRIVILEGES = "no_new_privs"
NAMESPACES = "namespaces"
OWN_ROOT = "root"
OWN_USER = "user"
OWN_PROCESSES = "processes"
CAPABILITIES = "capabilities"
LANDLOCK = "landlock"
SECCOMP = "seccomp"
LIMITS = "limits"
CONFINED = (NO_NEW_PRIVILEGES, NAMESPACES, OWN_ROOT, OWN_USER, CAPABILITIES, LANDLOCK, SECCOMP, LIMITS)
OOM_SCORE, FIRST_TO_END = Path("/proc/self/oom_score_adj"), 800
LAYERS_OF = {
    ChildKind.WORKER: CONFINED,
    ChildKind.PARSER: CONFINED,
    ChildKind.COMPILER: (NO_NEW_PRIVILEGES, CAPABILITIES, LANDLOCK, SECCOMP, LIMITS),
    ChildKind.MODEL: (NO_NEW_PRIVILEGES, CAPABILITIES, LANDLOCK, SECCOMP, LIMITS),
    ChildKind.BUILDER: (NO_NEW_PRIVILEGES, CAPABILITIES, LIMITS),
    ChildKind.EGRESS: (NO_NEW_PRIVILEGES, CAPABILITIES, LANDLOCK, SECCOMP, LIMITS),
    ChildKind.TOOL_SERVER: (NO_NEW_PRIVILEGES, OWN_PROCESSES, CAPABILITIES, LANDLOCK, SECCOMP, LIMITS),
    ChildKind.INSTALLER: (NO_NEW_PRIVILEGES, CAPABILITIES, LANDLOCK, LIMITS),
}
"""``namespaces``: no network and no System V objects of others. ``root``: a file system of what is needed alone. ``user``: a
user, or a user namespace, that no other process has. ``processes``: process ids that no other process has."""
TRIED = {ChildKind.COMPILER: (NAMESPACES, OWN_ROOT, OWN_USER)}
"""Layers that a kind has where it can. A compiler is started by an engine, whose children may mount nothing under Landlock, and
be root in no user namespace once its capabilities are gone."""


@dataclass(frozen=True)
class Layer:
    """Whether a layer stands in a process, and if not, why not."""

    name: str
    active: bool
    reason: str = ""


class Confinement:
    """Puts up this process's layers. Call :meth:`start` while it has one thread, and :meth:`seal` once all is loaded."""

    def __init__(self, kind: ChildKind, access: Access, limits: ResourceLimits, parent: int = 0) -> None:
        self._kind = kind
        self._parent = parent
        self._access = access
        self._limits = limits
        self._layers: dict[str, Layer] = {}
        self._may_become_nobody = False

    @property
    def layers(self) -> list[Layer]:
        """What stands now, of this kind's layers."""
        return [self._layers.get(name, Layer(name, False, "not yet")) for name in LAYERS_OF[self._kind]]

    def start(self) -> None:
        """Put up all but what :meth:`seal` does."""
        wanted = LAYERS_OF[self._kind]
        readable = needed_folders(self._access.read)
        if self._is_for_strangers:
            end_first_without_memory()
        steps: dict[str, Callable[[Kernel], object]] = {
            NO_NEW_PRIVILEGES: forbid_new_privileges,
            NAMESPACES: lambda kernel: self._separate(kernel, readable),
            OWN_ROOT: lambda kernel: self._enter_root(kernel, readable),
            OWN_USER: self._leave_user,
            OWN_PROCESSES: self._enter_processes,
            CAPABILITIES: drop_capabilities,
            LANDLOCK: lambda kernel: restrict_files(kernel, self._allowed(readable)),
        }
        for name, step in steps.items():
            if name in wanted or name in TRIED.get(self._kind, ()):
                self._put_up(name, step)
        self._limit_start()
        if self._parent:
            die_with(self._parent)

    def seal(self) -> None:
        """Refuse further system calls, memory and files."""
        self._limit_memory()
        self._layers[LIMITS] = Layer(LIMITS, True)
        if SECCOMP in LAYERS_OF[self._kind]:
            self._put_up(SECCOMP, self._filter_calls)

    @property
    def _is_for_strangers(self) -> bool:
        return self._kind in (ChildKind.WORKER, ChildKind.PARSER, ChildKind.COMPILER)

    def _filter_calls(self, kernel: Kernel) -> None:
        if self._is_for_strangers:
            install_filter(kernel, rules_of(self._kind), MISSING)
        else:
            install_refusals(kernel, REFUSED_TO_MODELS)

    def _allowed(self, readable: list[str]) -> Allowed:
        if self._is_for_strangers:
            return Allowed(readable=existing([*readable, OWN_PROCESS]))
        if self._kind is ChildKind.EGRESS:
            return Allowed(readable=existing([*readable, *NETWORK_FILES, OWN_PROCESS]), network=True)
        if self._kind is ChildKind.TOOL_SERVER:
            return Allowed(
                runnable=runnable(self._access, readable), changeable=existing(DEVICE_FILES),
                writable=existing(self._access.write), network=True,
            )  # fmt: skip
        if self._kind is ChildKind.INSTALLER:  # pip's settings, mirrors and certificates may lie anywhere
            return Allowed(
                runnable=["/"],
                changeable=[os.devnull],
                writable=self._access.write,
                network=True,
                abstract_sockets=True,
            )
        return Allowed(
            runnable=runnable(self._access, readable), writable=writable(self._access), network=True,
            abstract_sockets=self._access.abstract_sockets,
            changeable=["/proc"] if os.geteuid() else [],  # root could change the kernel there; others need it for namespaces
        )  # fmt: skip

    def _put_up(self, name: str, step: Callable[[Kernel], object]) -> None:
        try:
            step(Kernel())
        except OSError as error:
            self._layers[name] = Layer(name, False, reason_of(error))
        else:
            self._layers[name] = Layer(name, True)

    def _separate(self, kernel: Kernel, readable: Iterable[str]) -> None:
        """Leave the shared namespaces: as root without a user namespace, if another user could do the work."""
        if os.geteuid() == 0 and effective_capabilities() and all(map(others_can_read, self._own_files(readable))):
            try:
                leave_shared_namespaces(kernel, own_users=False)
                self._may_become_nobody = True
                return
            except OSError:  # a container's root may not
                pass
        leave_shared_namespaces(kernel, own_users=True)

    def _enter_processes(self, kernel: Kernel) -> None:
        parent, self._parent = self._parent, 0  # the process that waits for this one is tied
        for own_users in (False, True) if effective_capabilities() else (True,):  # a container's root may not without
            try:
                return enter_own_processes(kernel, parent, own_users=own_users)
            except OSError as error:
                refusal = error
        adopt_descendants(kernel, parent)
        raise refusal

    def _own_files(self, readable: Iterable[str]) -> Iterator[str]:
        yield from readable
        yield from (os.__file__, __file__, *self._access.sockets)

    def _enter_root(self, kernel: Kernel, readable: Iterable[str]) -> None:
        if not self._stands(NAMESPACES):
            raise NotSupported("it needs namespaces")
        enter_own_root(kernel, readable, self._access.sockets)

    def _leave_user(self, kernel: Kernel) -> None:
        if not self._stands(NAMESPACES):
            raise NotSupported("it needs namespaces")
        if self._may_become_nobody:
            if not self._stands(OWN_ROOT):
                raise NotSupported("another user could not reach the folders that are needed")
            become_nobody(kernel)

    def _stands(self, name: str) -> bool:
        return name in self._layers and self._layers[name].active

    def _limit_start(self) -> None:
        lower(resource.RLIMIT_CORE, 0)
        if self._limits.open_files:
            lower(resource.RLIMIT_NOFILE, self._limits.open_files)
        if self._limits.threads and self._stands(OWN_USER):  # else the user's other processes would count
            lower(resource.RLIMIT_NPROC, self._limits.threads)
        if self._limits.cpu_seconds:
            lower(resource.RLIMIT_CPU, self._limits.cpu_seconds)

    def _limit_memory(self) -> None:
        if self._is_for_strangers:
            lower(resource.RLIMIT_FSIZE, 0)
        if self._limits.memory_bytes:
            lower(resource.RLIMIT_DATA, self._limits.memory_bytes)
        if self._limits.address_bytes:
            lower(resource.RLIMIT_AS, self._limits.address_bytes)


def lower(limit: int, value: int) -> None:
    """Lower a resource limit, for good; one that is lower already stays."""
    _, hard = resource.getrlimit(limit)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (wanted, wanted))


def end_first_without_memory() -> None:
    """Have the kernel end this process before those that serve everybody, when the machine's memory is used up."""
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text(str(max(FIRST_TO_END, int(OOM_SCORE.read_text()))))


def end_no_sooner_than(pid: int) -> None:
    """Have the kernel end this process no sooner than another one when memory is used up, whatever its parent has set."""
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text(Path(f"/proc/{pid}/oom_score_adj").read_text())


def others_can_read(path: str) -> bool:
    """True if any user who can reach a file or folder can read it."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        return bool(mode & stat.S_IXOTH)
    return bool(mode & stat.S_IROTH)


def existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that there are."""
    return [path for path in paths if os.path.exists(path)]


def reason_of(error: OSError) -> str:
    """Return why a layer cannot be put up, in words."""
    return error.strerror or str(error) or type(error).__name__
