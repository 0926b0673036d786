"""Numbers of the system calls that filters speak of, by processor (Linux: ``asm/unistd_64.h`` and ``asm-generic/unistd.h``)."""

from __future__ import annotations

from collections.abc import Mapping

X86_64: Mapping[str, int] = {
    "sched_getparam": 143, "sched_setscheduler": 144, "sched_getscheduler": 145,
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "nanosleep": 35, "setitimer": 38, "getpid": 39, "socket": 41, "connect": 42, "sendto": 44,
    "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52,
    "setsockopt": 54, "getsockopt": 55, "clone": 56, "exit": 60, "uname": 63, "fcntl": 72, "getdents64": 217,
    "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102,
    "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131, "prctl": 157, "gettid": 186,
    "time": 201, "futex": 202, "sched_getaffinity": 204, "epoll_create1": 291, "epoll_ctl": 233, "epoll_wait": 232,
    "epoll_pwait": 281, "set_tid_address": 218, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "tgkill": 234, "openat": 257, "open": 2, "stat": 4, "lstat": 6, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "faccessat2": 439, "pselect6": 270, "poll": 7, "ppoll": 271,
    "set_robust_list": 273, "eventfd2": 290, "dup3": 292, "pipe2": 293, "prlimit64": 302, "getrandom": 318,
    "membarrier": 324, "statx": 332, "rseq": 334, "process_vm_readv": 310, "restart_syscall": 219, "close_range": 436,
    "epoll_pwait2": 441, "clone3": 435, "getcpu": 309, "futex_waitv": 449, "kill": 62, "wait4": 61,
    "setpriority": 141, "waitid": 247, "getpriority": 140,
}  # fmt: skip
AARCH64: Mapping[str, int] = {
    "sched_setscheduler": 119, "sched_getscheduler": 120, "sched_getparam": 121,
    "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215,
    "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "ioctl": 29, "pread64": 67,
    "readv": 65, "writev": 66, "sched_yield": 124, "mremap": 216, "madvise": 233, "dup": 23, "nanosleep": 101,
    "setitimer": 103, "getpid": 172, "socket": 198, "connect": 203, "sendto": 206, "recvfrom": 207, "sendmsg": 211,
    "recvmsg": 212, "shutdown": 210, "getsockname": 204, "getpeername": 205, "setsockopt": 208, "getsockopt": 209,
    "clone": 220, "exit": 93, "uname": 160, "fcntl": 25, "getdents64": 61, "getcwd": 17, "gettimeofday": 169,
    "getrusage": 165, "sysinfo": 179, "times": 153, "getuid": 174, "getgid": 176, "geteuid": 175, "getegid": 177,
    "getppid": 173, "sigaltstack": 132, "prctl": 167, "gettid": 178, "futex": 98, "sched_getaffinity": 123,
    "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "set_tid_address": 96, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "exit_group": 94, "tgkill": 131, "openat": 56, "newfstatat": 79,
    "readlinkat": 78, "faccessat": 48, "faccessat2": 439, "pselect6": 72, "ppoll": 73, "set_robust_list": 99,
    "eventfd2": 19, "dup3": 24, "pipe2": 59, "prlimit64": 261, "getrandom": 278, "membarrier": 283, "statx": 291,
    "rseq": 293, "process_vm_readv": 270, "restart_syscall": 128, "close_range": 436, "epoll_pwait2": 441,
    "clone3": 435, "getcpu": 168, "futex_waitv": 449, "kill": 129, "wait4": 260, "setpriority": 140, "waitid": 95,
    "getpriority": 141,
}  # fmt: skip
X86_64_REFUSED: Mapping[str, int] = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "kcmp": 312,
    "pidfd_getfd": 438, "setns": 308, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "keyctl": 250, "add_key": 248, "request_key": 249,
    "fanotify_init": 300, "modify_ldt": 154, "uselib": 134, "vmsplice": 278, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168,
    "acct": 163, "quotactl": 179, "quotactl_fd": 443, "iopl": 172, "ioperm": 173, "settimeofday": 164,
    "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170, "setdomainname": 171,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "lookup_dcookie": 212, "syslog": 103, "vhangup": 153,
    "chroot": 161, "nfsservctl": 180,
}  # fmt: skip
AARCH64_REFUSED: Mapping[str, int] = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "process_madvise": 440, "kcmp": 272,
    "pidfd_getfd": 438, "setns": 268, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "keyctl": 219, "add_key": 217, "request_key": 218,
    "fanotify_init": 262, "vmsplice": 75, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60,
    "quotactl_fd": 443, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
    "sethostname": 161, "setdomainname": 162, "open_by_handle_at": 265, "name_to_handle_at": 264, "lookup_dcookie": 18,
    "syslog": 116, "vhangup": 58, "chroot": 51, "nfsservctl": 42,
}  # fmt: skip
