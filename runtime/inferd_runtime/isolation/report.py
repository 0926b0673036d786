"""Which layers this system offers, found out by trying: a child of each kind puts them up and says how it went."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.layers import LAYERS_OF, Layer
from inferd_runtime.isolation.order import Launch

PROBE_MODULE = "inferd_runtime.isolation.probe"
PROBE_SECONDS = 20.0
REPORTED = (ChildKind.WORKER, ChildKind.MODEL)
"""One of the kinds that run or read what strangers send, and the kind that owns models."""


def layers(kind: ChildKind = ChildKind.WORKER) -> list[Layer]:
    """Return the layers of a kind of child on this system, each with the reason if it is not active. Takes about 0.1 s."""
    launch, said = Launch(PROBE_MODULE, kind), b""
    try:
        done = subprocess.run(
            launch.command, input=launch.document(), env=launch.environment, capture_output=True, timeout=PROBE_SECONDS
        )
        said = done.stderr
        return msgspec.json.decode(done.stdout, type=list[Layer])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        reason = said.decode(errors="replace").strip().rpartition("\n")[2] or error
        return [Layer(name, False, f"no process with it can be started: {reason}") for name in LAYERS_OF[kind]]


def report() -> dict[ChildKind, list[Layer]]:
    """Return the layers of the kinds that are told to people."""
    with ThreadPoolExecutor(len(REPORTED)) as threads:
        return dict(zip(REPORTED, threads.map(layers, REPORTED), strict=True))


def check_all(found: Mapping[ChildKind, Sequence[Layer]]) -> None:
    """Raise Unavailable that names every layer that is missing."""
    missing = [
        f"{kind}: {layer.name} ({layer.reason})" for kind, kept in found.items() for layer in kept if not layer.active
    ]
    if missing:
        raise Unavailable(f"this system does not offer what --require-isolation asks for: {'; '.join(missing)}")


def described(found: Mapping[ChildKind, Sequence[Layer]]) -> str:
    """Return the layers as a line for people."""
    return "; ".join(f"{kind}: {_of_kind(kept)}" for kind, kept in found.items())


def _of_kind(kept: Sequence[Layer]) -> str:
    active = " ".join(layer.name for layer in kept if layer.active)
    missing = ", ".join(f"{layer.name} ({layer.reason})" for layer in kept if not layer.active)
    return f"{active}, without {missing}" if missing else active
