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
from inferd_runtime.isolation.syscall_numbers import AARCH64, AARCH64_REFUSED, X86_64, X86_64_REFUSED

SET_MODE_FILTER = 1
ALL_THREADS = 1
"""SECCOMP_FILTER_FLAG_TSYNC."""
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""SECCOMP_RET_ALLOW, _ERRNO, _KILL_PROCESS."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_JMP|BPF_JGE|BPF_K, BPF_JMP|BPF_JSET|BPF_K, BPF_RET|BPF_K."""
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
X32_CALLS = 0x40000000
"""Numbers from here on are those of a second convention on x86-64."""
INSTRUCTION = struct.Struct("<HBBI")


@dataclass(frozen=True)
class Machine:
    """A processor's name for the kernel (``AUDIT_ARCH_*``), and its numbers of system calls: those of lists of what is allowed,
    and those of what is refused.
    """

    name: int
    numbers: Mapping[str, int]
    refused: Mapping[str, int]


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(0xC000003E, X86_64, X86_64_REFUSED),
    "aarch64": Machine(0xC00000B7, AARCH64, AARCH64_REFUSED),
}


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
    _install(kernel, filter_code(_machine(kernel), rules, missing))


def _machine(kernel: Kernel) -> Machine:
    machine = MACHINES.get(kernel.machine)
    if machine is None:
        raise NotSupported(f"its system calls are not known for processors of the kind {kernel.machine}")
    return machine


def _install(kernel: Kernel, code: bytes) -> None:
    program = _Program(len(code) // INSTRUCTION.size, code)
    kernel.syscall("seccomp", SET_MODE_FILTER, ALL_THREADS, ctypes.byref(program))


def install_refusals(kernel: Kernel, names: Sequence[str]) -> None:
    """Refuse these calls in all threads of this process and its children from now on, for good. Raises OSError."""
    _install(kernel, refusing_code(_machine(kernel), names))


def refusing_code(machine: Machine, names: Sequence[str]) -> bytes:
    """Return the program that lets every call pass but these, which fail with EPERM, and those of another convention.

    Names that this processor does not have are left out.
    """
    code = [(LOAD, 0, 0, MACHINE_AT), (EQUAL, 1, 0, machine.name), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    code += [(AT_LEAST, 0, 1, X32_CALLS), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    for name in names:
        if name in machine.refused:
            code += [(EQUAL, 0, 1, machine.refused[name]), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


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
