"""What a worker is sent of the programs that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from inferd_runtime.sandbox.messages import Bundle, ForgetProgram, KeepProgram, LaunchRun, Limits, ToWorker
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.supervisor.worker_fleet import SHARED_BYTES, WorkerFleet, _Member
from inferd_runtime.server.supervisor.worker_pool import PoolSettings, WorkerPool

SMALL = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
LARGE = replace(SMALL, id="sha256:1", bundle=Bundle("p", {"main.py": "x" * (SHARED_BYTES + 1)}))


class Socket:
    closed = False

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []

    def send_now(self, frames: Sequence[bytes]) -> None:
        self.sent.append(msgspec.msgpack.decode(frames[1], type=ToWorker))


def test_a_large_program_is_sent_once_for_all_runs_of_a_worker() -> None:
    """192 runs of a program of 11 MB waited in the gateway with a copy each, until their worker had read them."""
    socket: Any = Socket()
    fleet = WorkerFleet(socket, WorkerPool(PoolSettings()), Any, Any)  # type: ignore[arg-type]
    fleet._members["one"] = _Member(Any, b"secret")  # type: ignore[arg-type]

    def launch(run: str, program: Program) -> None:
        fleet.launch("one", LaunchRun(run, b"", program.bundle, "{}", Limits()), program)

    for run in ("a", "b"):
        launch(run, LARGE)
    launch("c", SMALL)
    for program in (LARGE, SMALL, LARGE.without_files()):
        fleet.left("one", program)
    launch("d", LARGE)
    kept, forgotten = KeepProgram(LARGE.key, LARGE.bundle), ForgetProgram(LARGE.key)
    named = LaunchRun("a", b"", Bundle("p", {}), "{}", Limits(), program=LARGE.key)
    assert socket.sent == [
        kept, named, msgspec.structs.replace(named, run="b"), LaunchRun("c", b"", SMALL.bundle, "{}", Limits()),
        forgotten, kept, msgspec.structs.replace(named, run="d"),
    ]  # fmt: skip
