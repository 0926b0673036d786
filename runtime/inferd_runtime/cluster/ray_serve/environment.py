"""What a Ray that runs a cluster has to be started with. The name of a variable is that of Ray's own setting behind ``RAY_``."""

from __future__ import annotations

RAY_ENVIRONMENT = {
    "RAY_kill_child_processes_on_worker_exit": "false",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
    "RAY_worker_oom_score_adjustment": "0",
}
"""Ray would kill front and replicas with its actors: they see to their end themselves. Where memory is used up, it would
end actors, which hold next to none, and with each a whole runtime: the kernel ends sandbox workers first. And whatever an
actor starts would yield the processors to all else on the machine.
"""
