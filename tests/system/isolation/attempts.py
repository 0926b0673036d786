"""What a hostile process tries, from the inside of a worker. Each function returns what came of each try, by its name."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from inferd.protocol import ErrorInfo
from inferd_runtime.isolation.call_rules import MISSING, rules_of
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.seccomp import MACHINES
from inferd_runtime.sandbox.messages import LaunchRun, RunFinished, RunUsage
from inferd_runtime.session import wire

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LAST_CALL = 600
KERNELS_OWN = {335, 336} if os.uname().machine == "x86_64" else set()
"""``uretprobe`` and ``uprobe``: no filter is asked about them; from anywhere but the kernel's own page they end the process."""
WAIT_MS = 300
"""How long something that should be ignored is waited for."""


def tried(attempt: Callable[[], Any]) -> str:
    """``refused: why`` for an attempt that fails, else what it brought."""
    try:
        return f"DONE: {attempt()!r}"
    except (OSError, MemoryError, RuntimeError, ValueError, LookupError) as error:
        return f"refused: {error!r}"


def raw(name: str, *arguments: int) -> Callable[[], int]:
    """A system call by its name."""
    return lambda: checked(MACHINES[os.uname().machine].numbers[name], *arguments)


def checked(number: int, *arguments: int) -> int:
    result: int = LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def files(_worker: Any, _launch: LaunchRun, secrets: list[str], package: str, sockets: str) -> dict[str, str]:
    """Read what others own, and write anything anywhere."""
    home = "/root"
    readable = [
        *secrets,
        "/etc/shadow",
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/cpuinfo",
        home,
        "/home",
        "/var",
        "/run",
        "/sys",
    ]
    parent = f"/proc/{os.getppid()}"
    read = {f"read {path}": tried(lambda path=path: os.listdir(path) if os.path.isdir(path) else Path(path).read_bytes())
            for path in [*readable, *(f"{parent}/{name}" for name in ("environ", "mem", "maps")), sockets]}  # fmt: skip
    places = ["/new", "/tmp/new", f"{sockets}/new", f"{package}/new.py", "/lib/new", "/dev/new", "/proc/self/new"]
    write = {f"write {path}": tried(lambda path=path: Path(path).write_text("x")) for path in places}
    own = f"{package}/isolation/launcher.py"
    change: dict[str, Callable[[], Any]] = {
        "overwrite": lambda: open(own, "a").close(),
        "remove": lambda: os.unlink(own),
        "make executable": lambda: os.chmod(own, 0o777),
        "make a folder": lambda: os.mkdir("/tmp2"),
        "make a link": lambda: os.symlink("/", "/link"),
        "make a hard link": lambda: os.link(own, "/link"),
        "make a device": lambda: os.mknod("/dev/sda", 0o060666, os.makedev(8, 0)),
        "make a socket": lambda: bound_socket(f"{sockets}/mine.sock"),
        "change its memory's file": lambda: os.open("/proc/self/mem", os.O_RDWR),
        "its own oom score": lambda: Path("/proc/self/oom_score_adj").write_text("-1000"),
    }
    return read | write | {name: tried(attempt) for name, attempt in change.items()}


def bound_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def network(_worker: Any, _launch: LaunchRun, port: int, stranger: str, abstract: str) -> dict[str, str]:
    """Reach anything but the two sockets that a worker is there for."""
    kinds = [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET6, socket.SOCK_STREAM),
             (socket.AF_NETLINK, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM),
             (socket.AF_ALG, socket.SOCK_SEQPACKET), (socket.AF_INET, socket.SOCK_RAW)]  # fmt: skip
    made = {f"socket {family.name} {kind.name}": tried(lambda family=family, kind=kind: socket.socket(family, kind).close())
            for family, kind in kinds}  # fmt: skip
    return made | {
        "the gateway's port": tried(lambda: socket.create_connection(("127.0.0.1", port), 2).close()),
        "a socket of the machine": tried(lambda: connected(stranger)),
        "an abstract socket of the machine": tried(lambda: connected("\0" + abstract)),
        "a name server": tried(lambda: socket.getaddrinfo("example.org", 80)),
    }


def connected(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(address)


def processes(_worker: Any, _launch: LaunchRun, others: list[int]) -> dict[str, str]:
    """Signal, trace, read or change other processes, and start new ones."""
    made: dict[str, str] = {}
    for pid in [os.getppid(), 1, *others]:
        made |= {f"{name} {pid}": tried(attempt) for name, attempt in against(pid).items()}
    starts: dict[str, Callable[[], Any]] = {
        "execve": lambda: os.execv("/bin/sh", ["sh", "-c", "exit"]),
        "posix_spawn": lambda: os.posix_spawn("/bin/sh", ["sh"], {}),
        "fork": forked,
        "clone without a thread": raw("clone", 17, 0, 0, 0, 0),
        "clone a user namespace": raw("clone", 0x10000000 | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0),
        "everybody": lambda: os.kill(-1, 0),
        "its group": lambda: os.killpg(0, 0),
    }
    return made | {name: tried(attempt) for name, attempt in starts.items()}


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def against(pid: int) -> dict[str, Callable[[], Any]]:
    here = ctypes.create_string_buffer(8)
    span = struct.pack("QQ", ctypes.addressof(here), 8)
    buffer = ctypes.create_string_buffer(span)
    address = ctypes.addressof(buffer)
    return {
        "kill": lambda: os.kill(pid, 0),
        "tgkill": raw("tgkill", pid, pid, 0),
        "pidfd_open": lambda: os.pidfd_open(pid),
        "read the memory of": raw("process_vm_readv", pid, address, 1, address, 1, 0),
        "trace": lambda: checked(101 if os.uname().machine == "x86_64" else 117, 16, pid, 0, 0),
        "slow down": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        "limit": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)),
        "move": lambda: os.sched_setaffinity(pid, {0}),
        "have signals sent to": lambda: fcntl.fcntl(0, 8, pid),
    }


def calls(_worker: Any, _launch: LaunchRun) -> dict[str, str]:
    """Every system call that is not on the worker's list, and the forbidden uses of those that are."""
    numbers = MACHINES[os.uname().machine].numbers
    allowed = {numbers[name] for name in rules_of(ChildKind.WORKER) if name in numbers}
    missing = {numbers[name] for name in MISSING}
    made = {f"call {number}": tried(lambda number=number: checked(number, 0, 0, 0, 0, 0, 0))
            for number in range(LAST_CALL) if number not in allowed | missing | KERNELS_OWN}  # fmt: skip
    page = mmap.PAGESIZE
    uses: dict[str, Callable[[], Any]] = {
        "clone3": raw("clone3", 0, 0),
        "code in new memory": lambda: mmap.mmap(
            -1, page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_EXEC
        ),
        "memory that no limit counts": lambda: mmap.mmap(-1, page, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        "code in old memory": raw("mprotect", 0x10000, page, 4),
        "type for the terminal": raw("ioctl", 0, 0x5412, 0),
        "a process that can be traced": raw("prctl", 4, 1, 0, 0, 0),
        "a filter off": raw("prctl", 22, 0, 0, 0, 0),
        "another securebits": raw("prctl", 28, 0, 0, 0, 0),
        "a survivor of its parent": raw("prctl", 1, 0, 0, 0, 0),
        "a 64-bit value for a 32-bit one": raw("prctl", 15 + (1 << 32), 0, 0, 0, 0),
        "more files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)),
        "fewer limits": lambda: resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2),
        "root": lambda: os.setuid(0),
        "root's group": lambda: os.setgid(0),
        "root's groups": lambda: os.setgroups([0]),
    }
    return made | {name: tried(attempt) for name, attempt in uses.items()}


def amounts(_worker: Any, _launch: LaunchRun, memory_mb: int) -> dict[str, int]:
    """Take as much as there is. How much that was: MiB of memory, files, threads."""
    return {"memory_mb": taken_memory(memory_mb), "files": taken_files(), "threads": taken_threads()}


def taken_memory(most: int) -> int:
    """MiB of memory in pieces of 64 that can be had, without touching them; up to ``most``."""
    held: list[mmap.mmap] = []
    try:
        while len(held) * 64 < most:
            held.append(mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, MemoryError):
        pass
    return 64 * len(held)


def taken_files() -> int:
    held: list[int] = []
    try:
        while len(held) < 1 << 20:
            held.append(os.dup(0))
    except OSError:
        pass
    for one in held:
        os.close(one)
    return len(held)


def taken_threads() -> int:
    threading.stack_size(64 << 10)
    over = threading.Event()
    held: list[threading.Thread] = []
    try:
        while len(held) < 1 << 14:
            held.append(threading.Thread(target=over.wait))
            held[-1].start()
    except RuntimeError:
        held.pop()
    over.set()
    for one in held:
        one.join()
    return len(held)


def identity(worker: Any, launch: LaunchRun, victim: str, others: list[str]) -> dict[str, str]:
    """Be somebody else: for the engine another tenant or the gateway, for the gateway another worker."""
    own = wire.EngineLink(worker.context, worker.links.engine)
    forged = launch.grant.replace(b"mallory", b"victim!")
    assert forged != launch.grant
    made = {
        "a session without a grant": opened(worker, b""),
        "a session with a signature of zeros": opened(worker, bytes(32) + launch.grant[32:]),
        "a session of another tenant": opened(worker, forged),
        "a session with a longer grant": opened(worker, launch.grant + b"\0"),
    }
    own.open(launch.grant, "mine")
    assert answer(own.socket) == "ok"
    made |= {
        "the same grant again": opened(worker, launch.grant),
        "figures of all": asked(own, wire.GetEngineStats.op, {}),
        "what others do": asked(own, wire.GetCycles.op, {"tenant": "bob", "after": -1}),
        "the end of another's session": asked(own, wire.CloseNamedSessions.op, {"sessions": [f"run/{victim}"]}),
    }
    for name in (f"run/{victim}", victim, "gateway", "gateway/1", "gateway/2"):
        made[f"the socket of {name}"] = spoken_as(worker, name)
    for name in ("worker-1", "worker-2", *others):
        made[f"a report of {name}"] = reported_as(worker, name, victim)
    worker.say(RunFinished(victim, RunUsage(), '"forged"'))
    return made


def opened(worker: Any, grant: bytes) -> str:
    """What the engine answers to an opening."""
    link = wire.EngineLink(worker.context, worker.links.engine)
    link.open(grant, "stranger")
    return answer(link.socket)


def asked(link: wire.EngineLink, op: str, request: dict[str, Any]) -> str:
    link.send(5, op, msgspec.msgpack.encode(request), wire.MSGPACK)
    return answer(link.socket)


def spoken_as(worker: Any, identity: str) -> str:
    """What the engine answers to a request from a socket of that name."""
    link: zmq.Socket[bytes] = worker.context.socket(zmq.DEALER)
    link.setsockopt(zmq.IDENTITY, identity.encode())
    link.connect(worker.links.engine)
    link.send_multipart(wire.request_frames(5, wire.GetEngineStats.op, wire.MSGPACK, b"\x80"))
    return answer(link)


def answer(link: zmq.Socket[bytes]) -> str:
    if not link.poll(20_000):
        return "refused: no answer"
    reply = wire.parse_reply(link.recv_multipart())
    return "ok" if reply.ok else f"refused: {msgspec.msgpack.decode(reply.payload, type=ErrorInfo).message}"


def reported_as(worker: Any, identity: str, victim: str) -> str:
    """Whether the gateway sends anything to a socket of that name, which says that a victim's run is over."""
    link: zmq.Socket[bytes] = worker.context.socket(zmq.DEALER)
    link.setsockopt(zmq.IDENTITY, identity.encode())
    link.connect(worker.links.control)
    link.send(msgspec.msgpack.encode(RunFinished(victim, RunUsage(), '"forged"')))
    return "ok" if link.poll(WAIT_MS) else "refused: no answer"
