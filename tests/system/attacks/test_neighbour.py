"""What a neighbour keeps of its speed, and the server of its memory, in figures: for a machine that runs nothing else."""

from __future__ import annotations

import time

import pytest

from .arena import Arena, percentile, strict
from .attack import Attack, attacks
from .test_connections import CONNECTIONS
from .test_engine_floods import FLOODS, TEXTS, from_two_tenants
from .test_guest_programs import FLOODS as PRINTING, HOST_CALLS
from .test_hoards import HOARDS
from .test_services import SERVICES
from .test_uploads import UPLOADS

ROUNDS = 2
LEAST_SECONDS = 2.0
SETTLE_GENERATIONS = 6
SLACK_MB = 40.0
MOST_OF_A_WORKER_MB = 260.0
HEAVY = (
    "12 ends with 3 MB of arguments", "6 errors of 20 MB", "12 messages of 3 MB to one that does not read",
    "12 programs with 3 MB of arguments", "3 results of 20 MB", "4 outputs of 20 MB",
)  # fmt: skip
MOST = (
    *FLOODS, *HOARDS, *HOST_CALLS, *PRINTING, *SERVICES,
    *(one for one in UPLOADS if one.name in ("20 slow sources at once", "60 versions", "nested f-strings", "dotted keys")),
    *(one for one in TEXTS if "MB" in one.name or "at once" in one.name or "leave" in one.name),
    *(one for one in CONNECTIONS if one.name.startswith(("400", "1,021", "24", "2,000", "50,000", "chunks"))),
)  # fmt: skip


@pytest.mark.long
@attacks(*MOST)
def test_the_neighbour_keeps_its_share(arena: Arena, attack: Attack) -> None:
    """Prints a line of the table in docs/attack-rounds.md. What is over in a moment is done again."""
    arena.watcher.report()
    until = time.monotonic() + LEAST_SECONDS
    end = attack.carry_out(arena)
    while time.monotonic() < until:
        attack.carry_out(arena)
    report = arena.watcher.after(1)
    share, slowest = report.rate / arena.alone.rate, percentile(report.livez_ms, 0.99)
    print(f"| {attack.name} | {end} | {share:.2f} | {report.worst_gap_ms:.0f} | {slowest:.0f} |")
    arena.check(report, strict(2 if attack.name == "two tenants at once" else 1))


@pytest.mark.long
def test_two_hostile_tenants_leave_a_third(arena: Arena) -> None:
    arena.watcher.report()
    from_two_tenants(arena)
    arena.check(arena.watcher.after(1), strict(2))


def test_memory_comes_back(arena: Arena) -> None:
    """Attacks that fill memory leave no more behind the second time than the first, and little at all in a worker.

    Workers are held to that alone: the largest of one moment is a new process, that of another has served many runs.
    """
    heavy = [attack for attack in HOARDS if attack.name in HEAVY]
    assert len(heavy) == len(HEAVY)
    held = []
    arena.watcher.tell("ease")
    for _ in range(ROUNDS):
        for attack in heavy:
            attack.carry_out(arena)
        arena.watcher.after(SETTLE_GENERATIONS)
        held.append(arena.memory())
    arena.watcher.tell("resume")
    first, last = held[0], held[-1]
    grown = {kind: (first[kind], last[kind]) for kind in ("gateway", "engine")}
    assert all(late <= 1.1 * early + SLACK_MB for early, late in grown.values()), grown
    assert last["worker"] <= MOST_OF_A_WORKER_MB, held
