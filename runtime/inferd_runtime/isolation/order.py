"""What a parent tells a child on its standard input: two lines of JSON, the order and then the child's own settings.

Neither is in the child's arguments or environment, where other processes could read it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import inferd
import inferd_runtime
from inferd_runtime.isolation.environment import order_environment, start_environment
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.settings_json import encode_settings

LAUNCHER = str(Path(__file__).resolve().with_name("launcher.py"))


@dataclass(frozen=True)
class Access:
    """Folders and files of the machine that a child may use beside Python's and the package's own.

    ``sockets``: folders with sockets that it connects to; they can be entered, and nothing in them be read or written.
    ``abstract_sockets``: whether it may speak to abstract ones of other processes, over which NCCL's ranks hand out memory.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    abstract_sockets: bool = False


@dataclass(frozen=True)
class ResourceLimits:
    """Limits that the kernel keeps for the whole process; 0: as its parent's.

    ``memory_bytes`` counts what it may write to (RLIMIT_DATA), ``address_bytes`` all that is mapped (RLIMIT_AS). The two, and
    that it writes no files, hold from :meth:`~inferd_runtime.isolation.child.Child.seal` on.
    """

    memory_bytes: int = 0
    address_bytes: int = 0
    threads: int = 0
    open_files: int = 0
    cpu_seconds: int = 0


@dataclass(frozen=True)
class Launch:
    """A child to start.

    Fields:
        target: a module with a function ``child_main(child)``, or the path of a script, which ends in ``.py``.
        kind: what it may do.
        arguments: what a script finds in ``sys.argv``.
        settings: what :meth:`~inferd_runtime.isolation.child.Child.settings` reads.
        require_all: whether it refuses to run where one of its kind's layers is not to be had.
        tethered: whether it is killed when the thread that started it ends; without, the child sees to its own end.
    """

    target: str
    kind: ChildKind
    arguments: tuple[str, ...] = ()
    settings: object = None
    access: Access = field(default_factory=Access)
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    require_all: bool = False
    tethered: bool = True

    @property
    def command(self) -> list[str]:
        """The command line; what it is about is there for people to see."""
        return [sys.executable, "-I", LAUNCHER, self.target]

    @property
    def environment(self) -> dict[str, str]:
        """The environment to start it with."""
        return start_environment(self.kind, os.environ)

    def document(self) -> bytes:
        """Return what its standard input begins with."""
        own = (self.target,) if self.target.endswith(".py") else ()
        order = {
            "parent": os.getpid() if self.tethered else 0,
            "path": import_path(),
            "environment": order_environment(self.kind, os.environ),
            "target": self.target,
            "arguments": self.arguments,
            "kind": self.kind,
            "access": replace(self.access, read=(*own, *self.access.read)),
            "limits": self.limits,
            "require_all": self.require_all,
        }
        return msgspec.json.encode(order) + b"\n" + encode_settings(self.settings) + b"\n"


def import_path() -> list[str]:
    """Return what children import from beside their own Python's folders: this process's import path, on purpose.

    Neither the working directory nor the folder of the script that runs is in it, unless our own packages lie there: both are
    folders of others, as a program's is.
    """
    own = [str(Path(package.__file__ or "").resolve().parents[1]) for package in (inferd, inferd_runtime)]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    foreign = {os.path.realpath(os.getcwd()), os.path.realpath(os.path.dirname(script or ""))}
    others = (folder for folder in sys.path if os.path.isabs(folder) and os.path.realpath(folder) not in foreign)
    return list(dict.fromkeys([*own, *others]))
