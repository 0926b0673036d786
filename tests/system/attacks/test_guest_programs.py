"""Programs that compute, hoard, print, hang, crash, or take the interpreter apart: each ends within its limits, alone.

The programs are in ``programs``, one file for each test below: ``=== NAME | ENDS | LIMITS``, and the source.
"""

from __future__ import annotations

from pathlib import Path

from .arena import Arena
from .attack import QUICK, Program, attacks, withstood

CPU = "limit:cpu_s"
"""On a busy machine the time of the clock is up before that of the processor, so either will do."""
SPINNING = {"wall_s": 5.0, "cpu_s": 0.5}
"""Limits of programs that can end in no other way."""
PROGRAMS = Path(__file__).parent / "programs"


def read(file: str) -> list[Program]:
    """Return the programs of a file."""
    _, *sections = f"\n{(PROGRAMS / file).read_text()}".split("\n=== ")
    return [parsed(*section.split("\n", 1)) for section in sections]


def parsed(head: str, source: str) -> Program:
    """Return one program."""
    name, ends, *limits = [part.strip() for part in head.split(" | ")]
    quick = SPINNING if ends == CPU else QUICK
    ends += " limit:wall_s" if CPU in ends else ""
    changes = dict(pair.split("=") for pair in " ".join(limits).split())
    return Program(name, source, ends, {**quick, **{limit: int(value) for limit, value in changes.items()}})


FLOODS = read("floods.txt")
HOST_CALLS = read("host_calls.txt")
KEEPS = """
import json
import wit_world as host
async def main():
    for _ in range(40): host.keep(json.dumps({"large.py": "x" * (15 << 20)}))
    host.keep(json.dumps({str(n): "" for n in range(100_000)}))
    host.keep("[" * 1_000_000)
    host.keep('{"main.py": "no code"}')
    for n in range(20_000): host.file("x" * n), host.code("main.py")
"""
SEVERAL_FILES = (
    Program("files that hide the library", {"main.py": "async def main(): pass", "json.py": "1 / 0"}, "client.invalid"),
    Program(
        "a file called __main__",
        {"main.py": "import __main__\nasync def main(): pass", "__main__.py": "1 / 0"},
        "program client.invalid ok",
    ),
    Program(
        "keeps what is no code, again and again",
        {"main.py": KEEPS, "large.py": "#" * 70_000},
        "ok limit:cpu_s limit:wall_s limit:memory_mb",
    ),
)


@attacks(*read("loops.txt"))
def test_a_program_that_does_not_end_is_ended(arena: Arena, attack: Program) -> None:
    withstood(arena, attack)


@attacks(*read("memory.txt"))
def test_a_program_that_takes_too_much_memory_ends_alone(arena: Arena, attack: Program) -> None:
    withstood(arena, attack)


@attacks(*FLOODS)
def test_a_program_that_floods_what_it_says_ends_at_its_limit(arena: Arena, attack: Program) -> None:
    withstood(arena, attack)


@attacks(*read("interpreter.txt"), *SEVERAL_FILES)
def test_a_program_that_breaks_its_interpreter_breaks_nothing_else(arena: Arena, attack: Program) -> None:
    withstood(arena, attack)


@attacks(*HOST_CALLS)
def test_a_program_that_calls_the_host_by_itself_gets_no_further(arena: Arena, attack: Program) -> None:
    withstood(arena, attack)
