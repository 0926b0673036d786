"""What a worker's process may have, by its settings."""

from __future__ import annotations

from inferd_runtime.sandbox.wasm.engine_settings import MIB
from inferd_runtime.sandbox.worker_start import IDLE_RUN_BYTES, WorkerBounds, physical_bytes


def test_a_worker_of_many_runs_may_have_what_they_need_to_wait() -> None:
    many = 2 * physical_bytes() // IDLE_RUN_BYTES + 100
    assert WorkerBounds(many).limits.memory_bytes == many * IDLE_RUN_BYTES
    assert WorkerBounds(1).limits.memory_bytes == 2 * physical_bytes()
    assert WorkerBounds(many, memory_mb=512).limits.memory_bytes == 512 * MIB
