"""Which system calls each kind of child may make once it is sealed."""

from __future__ import annotations

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.seccomp import NoBit, OneOf, Rules, SomeBit, own_process

EVERYWHERE = (
    # reading and writing what is open; looking at files, which Landlock and the mount namespace bound
    "read", "write", "readv", "writev", "pread64", "close", "close_range", "lseek", "dup", "dup2", "dup3", "pipe", "pipe2",
    "fstat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "open", "openat", "readlink",
    "readlinkat", "getdents64", "getcwd",
    # waiting
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd2",
    "futex", "futex_waitv", "nanosleep", "clock_nanosleep", "sched_yield", "restart_syscall",
    # this process's own memory, threads and signals
    "munmap", "mremap", "brk", "madvise", "membarrier", "exit", "exit_group", "gettid", "set_tid_address", "set_robust_list",
    "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
    # what the time is and who this is
    "clock_gettime", "clock_getres", "gettimeofday", "time", "times", "getrandom", "getpid", "getppid", "getuid", "geteuid",
    "getgid", "getegid", "getrusage", "sysinfo", "uname", "sched_getaffinity", "getcpu",
)  # fmt: skip
SOCKETS = (
    "connect", "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown", "getsockname", "getpeername", "setsockopt", "getsockopt",
)  # fmt: skip
AF_UNIX = 1
CLONE_THREAD, NEW_NAMESPACES = 0x10000, 0x7E020080
PROT_EXEC, MAP_SHARED = 4, 1
SCHED_OTHER = 0
FIONREAD, FIONBIO, FIOCLEX, TCGETS = 0x541B, 0x5421, 0x5451, 0x5401
DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
SET_PARENT_DEATH_SIGNAL, SET_NAME, GET_NAME, SET_MEMORY_NAME = 1, 15, 16, 0x53564D41
REFUSED_TO_MODELS = (
    # other processes: their memory, files and objects
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "setns",
    # the parts of the kernel in which most faults were
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key",
    "request_key", "fanotify_init", "modify_ldt", "uselib", "vmsplice",
    # the machine
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct",
    "quotactl", "quotactl_fd", "iopl", "ioperm", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname",
    "setdomainname", "open_by_handle_at", "name_to_handle_at", "lookup_dcookie", "syslog", "vhangup", "chroot", "nfsservctl",
)  # fmt: skip
"""What no library for models needs. All else is allowed: devices need more than a list could say."""
MISSING = ("clone3",)
"""Its flags are behind a pointer, where no filter sees them: the C library uses ``clone`` then."""


def rules_of(kind: ChildKind) -> Rules:
    """Return what a kind may call. Nothing here starts a program, or reaches another process or the network."""
    own = OneOf(0, own_process())
    no_code = [] if kind is not ChildKind.WORKER else [NoBit(2, PROT_EXEC)]  # the others load libraries late
    rules: dict[str, list[OneOf | NoBit | SomeBit]] = {name: [] for name in EVERYWHERE}
    rules |= {
        "mmap": [*no_code, NoBit(3, MAP_SHARED)],  # which the limit of memory does not count
        "mprotect": [*no_code],
        "clone": [SomeBit(0, CLONE_THREAD), NoBit(0, NEW_NAMESPACES)],
        "tgkill": [own],
        "process_vm_readv": [own],
        "ioctl": [OneOf(1, (FIONREAD, FIONBIO, FIOCLEX, TCGETS))],
        "fcntl": [OneOf(1, (DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC))],
        "prctl": [OneOf(0, (SET_NAME, GET_NAME, SET_MEMORY_NAME))],
        "prlimit64": [OneOf(0, (0, *own_process())), OneOf(2, (0,))],
    }
    if kind is ChildKind.WORKER:
        rules |= {"socket": [OneOf(0, (AF_UNIX,))], **{name: [] for name in SOCKETS}}
        # ZeroMQ's threads ask how they are scheduled, and set just that.
        rules |= {"sched_getparam": [], "sched_getscheduler": [], "sched_setscheduler": [OneOf(1, (SCHED_OTHER,))]}
    if kind is ChildKind.COMPILER:
        rules |= {"setitimer": [], "prlimit64": [OneOf(0, (0,))]}
    if kind is ChildKind.PARSER:
        rules |= _forking()
    return rules


def _forking() -> dict[str, list[OneOf | NoBit | SomeBit]]:
    """Return what a process needs that forks for each task, and ends the forks; the kernel counts them (RLIMIT_NPROC)."""
    return {
        "clone": [NoBit(0, NEW_NAMESPACES)],
        "wait4": [],
        "kill": [],
        "tgkill": [],
        "setpriority": [],
        "setitimer": [],
        "prlimit64": [OneOf(0, (0,))],
        "prctl": [OneOf(0, (SET_PARENT_DEATH_SIGNAL, SET_NAME, GET_NAME, SET_MEMORY_NAME))],
        **{name: [] for name in SOCKETS if name not in ("connect",)},
    }
