"""A filter of system calls: the kernel refuses every call that is not on this process's list (seccomp, Linux 3.17 and later).

The filter is a program in classic BPF, which the kernel checks and runs before each call. It sees numbers and the values of
arguments, but not what pointers point to: what a path may be is for :mod:`~inferd_runtime.isolation.landlock`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferd_runtime.isolation.kernel import Kernel, NotSupported
from inferd_runtime.isolation.syscall_numbers import AARCH64, X86_64

SET_MODE_FILTER = 1
ALL_THREADS = 1
"""SECCOMP_FILTER_FLAG_TSYNC."""
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""SECCOMP_RET_ALLOW, _ERRNO, _KILL_PROCESS."""
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_JMP|BPF_JSET|BPF_K, BPF_RET|BPF_K."""
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
INSTRUCTION = struct.Struct("<HBBI")


@dataclass(frozen=True)
class Machine:
    """A processor's name for the kernel (``AUDIT_ARCH_*``), and its numbers of system calls."""

    name: int
    numbers: Mapping[str, int]


MACHINES: Mapping[str, Machine] = {"x86_64": Machine(0xC000003E, X86_64), "aarch64": Machine(0xC00000B7, AARCH64)}


@dataclass(frozen=True)
class OneOf:
    """A condition: the argument of this index (from 0) is one of these values."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class NoBit:
    """A condition: the argument has none of these bits."""

    argument: int
    bits: int


@dataclass(frozen=True)
class SomeBit:
    """A condition: the argument has one of these bits."""

    argument: int
    bits: int


Condition = OneOf | NoBit | SomeBit
Rules = Mapping[str, Sequence[Condition]]
"""System calls that are allowed, each where all its conditions hold."""


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install_filter(kernel: Kernel, rules: Rules, missing: Sequence[str] = ()) -> None:
    """Allow these calls in all threads of this process from now on, for good; every other one fails with EPERM.

    ``missing``: calls that fail with ENOSYS, so that the C library does without them. Raises OSError.
    """
    machine = MACHINES.get(kernel.machine)
    if machine is None:
        raise NotSupported(f"its system calls are not known for processors of the kind {kernel.machine}")
    code = filter_code(machine, rules, missing)
    program = _Program(len(code) // INSTRUCTION.size, code)
    kernel.syscall("seccomp", SET_MODE_FILTER, ALL_THREADS, ctypes.byref(program))


def filter_code(machine: Machine, rules: Rules, missing: Sequence[str] = ()) -> bytes:
    """Return the program. Calls in another processor's convention than ``machine`` kill the process.

    Names that this processor does not have are left out.
    """
    code = [(LOAD, 0, 0, MACHINE_AT), (EQUAL, 1, 0, machine.name), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    for name, conditions in rules.items():
        if name in machine.numbers:
            code += _allow(machine.numbers[name], conditions)
    for name in missing:
        code += [(EQUAL, 0, 1, machine.numbers[name]), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    code.append((RETURN, 0, 0, REFUSE | errno.EPERM))
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


_Instruction = tuple[int, int, int, int]


def _allow(number: int, conditions: Sequence[Condition]) -> list[_Instruction]:
    """Return the instructions that end the program with ALLOW for this call. For another one they go on behind themselves."""
    checks = [instruction for condition in conditions for instruction in _refuse_unless(condition)]
    body = [*checks, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(body), number), *body]


def _refuse_unless(condition: Condition) -> list[_Instruction]:
    """Return the instructions that end the program with EPERM where a condition does not hold.

    An argument has two halves; the upper one is that of a number that no allowed value needs, and has to be 0.
    """
    low = ARGUMENTS_AT + 8 * condition.argument
    refuse = (RETURN, 0, 0, REFUSE | errno.EPERM)
    upper: list[_Instruction] = [(LOAD, 0, 0, low + 4), (EQUAL, 1, 0, 0), refuse, (LOAD, 0, 0, low)]
    match condition:
        case OneOf(values=values):
            tests = [(EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
            return [*upper, *tests, refuse]
        case NoBit(bits=bits):
            return [*upper, (ANY_BIT, 0, 1, bits), refuse]
        case SomeBit(bits=bits):
            return [*upper, (ANY_BIT, 1, 0, bits), refuse]


def own_process() -> tuple[int, ...]:
    """Return this process's id, for conditions."""
    return (os.getpid(),)
