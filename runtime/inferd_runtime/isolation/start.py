"""Starting a child, and giving it its order."""

from __future__ import annotations

import contextlib
import subprocess

from inferd_runtime.isolation.order import Launch


def give_order(process: subprocess.Popen[bytes], launch: Launch) -> None:
    """Write a child's order to its standard input, which stays open. A child that has ended already is no error."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(launch.document())
        process.stdin.flush()


def close_input(process: subprocess.Popen[bytes]) -> None:
    """End a child's standard input."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def piped_child(launch: Launch) -> subprocess.Popen[bytes]:
    """Start a child whose standard input, behind its order, and output are pipes. It gets no other descriptor."""
    process = subprocess.Popen(
        launch.command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=launch.environment,
    )  # fmt: skip
    give_order(process, launch)
    return process
