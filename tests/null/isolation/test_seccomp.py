"""The filter's program, run by an interpreter of the few instructions that it is made of, for both processors."""

from __future__ import annotations

import errno
import struct

import pytest

from inferd_runtime.isolation.call_rules import MISSING, REFUSED_TO_MODELS, rules_of
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.seccomp import (
    ALLOW,
    INSTRUCTION,
    KILL,
    MACHINES,
    REFUSE,
    Machine,
    filter_code,
    refusing_code,
)

DENIED = REFUSE | errno.EPERM
CALL = struct.Struct("<iIQ6Q")
"""``struct seccomp_data``: number, processor, address of the call, arguments."""


def verdict(code: bytes, machine: int, number: int, *arguments: int) -> int:
    """What the program returns for a call."""
    data = CALL.pack(number, machine, 0, *(*arguments, *[0] * 6)[:6])
    program = list(INSTRUCTION.iter_unpack(code))
    at = held = 0
    while True:
        kind, true, false, value = program[at]
        at += 1
        if kind == 0x06:
            return int(value)
        if kind == 0x20:
            held = int.from_bytes(data[value : value + 4], "little")
        else:
            tests = {0x15: held == value, 0x35: held >= value, 0x45: held & value}
            at += true if tests[kind] else false


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


@pytest.mark.parametrize("kind", [ChildKind.WORKER, ChildKind.PARSER, ChildKind.COMPILER])
def test_every_call_that_is_not_listed_is_refused(machine: Machine, kind: ChildKind) -> None:
    rules = rules_of(kind)
    code = filter_code(machine, rules, MISSING)
    listed = {machine.numbers[name] for name in rules if name in machine.numbers}
    missing = {machine.numbers[name] for name in MISSING}
    for number in range(1024):
        if number not in listed | missing:
            assert verdict(code, machine.name, number) == DENIED
        elif not rules.get(next(name for name, known in machine.numbers.items() if known == number)):
            assert verdict(code, machine.name, number) in (ALLOW, REFUSE | errno.ENOSYS)
    assert verdict(code, machine.name, 0x40000000 | machine.numbers["read"]) == DENIED, "the x32 way of the same call"


def test_calls_of_another_processor_end_the_process(machine: Machine) -> None:
    code = filter_code(machine, rules_of(ChildKind.WORKER))
    assert verdict(code, 0x40000003, machine.numbers["read"]) == KILL


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("socket", (1, 1, 0), True),
        ("socket", (2, 1, 0), False),
        ("socket", (1 << 32 | 1, 1, 0), False),
        ("clone", (0x3D0F00,), True),
        ("clone", (0x11,), False),
        ("clone", (0x10000 | 0x10000000,), False),
        ("mmap", (0, 4096, 3, 0x22), True),
        ("mmap", (0, 4096, 4, 0x22), False),
        ("mmap", (0, 4096, 3, 0x21), False),
        ("mprotect", (0, 4096, 5), False),
        ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (0, 7, 4096), False),
        ("ioctl", (0, 0x5412), False),
        ("prctl", (4, 1), False),
        ("fcntl", (0, 8, 1), False),
        ("tgkill", (1, 1, 9), False),
        ("process_vm_readv", (1,), False),
    ],
)
def test_arguments_are_checked(machine: Machine, name: str, arguments: tuple[int, ...], allowed: bool) -> None:
    code = filter_code(machine, rules_of(ChildKind.WORKER))
    assert verdict(code, machine.name, machine.numbers[name], *arguments) == (ALLOW if allowed else DENIED)


def test_a_list_of_refusals_lets_all_else_pass(machine: Machine) -> None:
    code = refusing_code(machine, REFUSED_TO_MODELS)
    refused = set(machine.refused.values())
    assert len(refused) > 30
    assert not refused & {machine.numbers[name] for name in machine.numbers if name != "process_vm_readv"}
    for number in range(1024):
        assert verdict(code, machine.name, number) == (DENIED if number in refused else ALLOW)
    assert verdict(code, 0x40000003, machine.numbers["read"]) == KILL
    assert verdict(code, machine.name, 0x40000000 | machine.refused["ptrace"]) == DENIED, "the x32 way of the same call"
