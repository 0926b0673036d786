"""Starts, looks at, resizes and ends a cluster on Ray Serve."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from inferd.protocol import InvalidRequest, NotFound, Unavailable
from inferd_runtime import __version__
from inferd_runtime.cluster.front.serving import front_settings
from inferd_runtime.cluster.ray_serve.deployments import END_SECONDS, FRONT, REPLICAS, ServeFront, ServeReplica
from inferd_runtime.cluster.ray_serve.environment import RAY_ENVIRONMENT
from inferd_runtime.cluster.ray_serve.left_behind import (
    ADVICE,
    answers,
    end_left,
    left_processes,
    ray_lives,
    ray_processes,
)
from inferd_runtime.cluster.ray_serve.loopback import LOOPBACK, stay_on_loopback
from inferd_runtime.cluster.ray_serve.scaling import LoadPolicy, ScalingTarget
from inferd_runtime.cluster.replica.serving import FRONT_SECONDS
from inferd_runtime.isolation.settings_json import encode_settings
from inferd_runtime.settings.settings import Settings

CLUSTER_FILE = "cluster.json"
LOOPBACK_MODULE = "inferd_runtime.cluster.ray_serve.loopback"
DEFAULT_PORT = 6379
AUTO = "auto"
"""The address of whatever Ray runs on this machine, as Ray says it."""
START_SECONDS = 120.0
STOP_SECONDS = 5.0
NAMESPACE = "inferd"


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Which Ray: ``address`` of one that runs, "" to start one here, on ``port`` of the loopback address.

    ``cpus``: what each replica asks Ray for; ``host``: where replicas and the front's private address listen, on their machines;
    "": at the address by which Ray knows the machine, the loopback address if Ray is started here.
    """

    address: str = ""
    port: int = DEFAULT_PORT
    cpus: float = 1.0
    gpus: float = 0.0
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """How many replicas: ``replicas`` of them, or, with ``most``, as many as the target says, at least ``replicas``."""

    replicas: int = 2
    most: int = 0
    target: ScalingTarget = field(default_factory=ScalingTarget)


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a cluster for later commands, in a file that only its owner can read.

    ``host``: see :class:`RayOptions`; ``started_ray``: the session folder of the Ray that was started with the cluster, "" for
    one that ran already.
    """

    address: str
    key: str
    settings: bytes
    cpus: float
    gpus: float
    host: str
    started_ray: str = ""
    pids: list[int] = []


def start_cluster(settings: Settings, options: RayOptions, sizing: Sizing) -> str:
    """Start or upgrade the cluster of a data folder, and return its address once a replica takes runs. Raises Unavailable."""
    settings = replace(settings, data_dir=settings.data_dir.resolve(), state_dir=settings.state_dir.resolve())
    known = _read(settings)
    if known and _has_ended(known):
        _end_without_ray(settings, known)
        known = msgspec.structs.replace(known, address="", started_ray="")
    if known and known.address and options.address not in ("", AUTO, known.address):
        raise InvalidRequest(f"the cluster is on the Ray at {known.address}: `inferd cluster down` first")
    record = ClusterRecord(
        address=(known and known.address) or options.address, key=known.key if known else secrets.token_urlsafe(32),
        settings=encode_settings(settings), cpus=options.cpus, gpus=options.gpus, host=options.host,
        started_ray=known.started_ray if known else "",
    )  # fmt: skip
    if not record.address:
        record = _start_ray(record, options.port, settings)
        _write(settings, record)
    with connected(record):
        record = msgspec.structs.replace(record, address=ray.get_runtime_context().gcs_address)
        _write(settings, record)
        serve.start(proxy_location="Disabled")
        _run_front(record, settings)
        _run_replicas(record, sizing, settings.drain_seconds)
        address: str = serve.get_deployment_handle(FRONT, FRONT).address.remote().result()
    return address


def _run_front(record: ClusterRecord, settings: Settings) -> None:
    at_front = encode_settings(front_settings(settings))
    front = serve.deployment(ServeFront, name=FRONT).options(
        num_replicas=1, ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        graceful_shutdown_timeout_s=END_SECONDS, health_check_period_s=1, health_check_timeout_s=5,
        version=_version(record, at_front), _internal=True,
    )  # fmt: skip
    serve.run(front.bind(at_front, record.key, record.host), name=FRONT, route_prefix=None)


def scale_cluster(settings: Settings, sizing: Sizing) -> None:
    """Change how many replicas there are. Those that go end in order."""
    record = _known(settings)
    if _has_ended(record):
        raise Unavailable(f"the cluster's Ray has ended; {ADVICE}")
    with connected(record):
        _run_replicas(record, sizing, settings.drain_seconds)


def stop_cluster(settings: Settings) -> None:
    """End the cluster in order, and the Ray that was started with it."""
    record = _known(settings)
    if _has_ended(record):
        _end_without_ray(settings, record)
        _path(settings).unlink(missing_ok=True)
        return
    with connected(record):
        for name in (REPLICAS, FRONT):
            serve.delete(name)
        serve.shutdown()
    _end_without_ray(settings, record)
    _path(settings).unlink(missing_ok=True)


def cluster_status(settings: Settings) -> dict[str, Any]:
    """Return what Ray says of the applications, by name; of the processes that go on, where Ray has ended."""
    record = _known(settings)
    if _has_ended(record):
        front, replicas = left_processes(settings)
        left = {"front": int(front > 0), "replicas": replicas}
        return {"ray": {"status": "ENDED", "replicas": left, "message": ADVICE}}
    with connected(record):
        found = serve.status().applications
    return {
        name: {
            "status": str(app.status.value),
            "replicas": {
                str(state.value if hasattr(state, "value") else state): count
                for one in app.deployments.values()
                for state, count in one.replica_states.items()
            },
            "message": app.message,
        }
        for name, app in found.items()
        if name in (FRONT, REPLICAS)
    }


@contextmanager
def connected(record: ClusterRecord) -> Iterator[None]:
    """Connect this process to the cluster's Ray while the body runs. What Ray prints goes to the standard error, as what the
    command prints is read by programs. Raises Unavailable.
    """
    if record.address.startswith(f"{LOOPBACK}:"):
        stay_on_loopback()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            ray.init(address=record.address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            raise Unavailable(f"no Ray answers at {record.address}: {error}") from None
        try:
            yield
        finally:
            ray.shutdown()


def _run_replicas(record: ClusterRecord, sizing: Sizing, drain_seconds: float) -> None:
    many: dict[str, Any] = {"num_replicas": sizing.replicas}
    if sizing.most:
        if sizing.most < sizing.replicas:
            raise InvalidRequest("the most replicas are fewer than the least")
        policy = AutoscalingPolicy(
            policy_function=LoadPolicy, policy_kwargs={"jobs": sizing.target.jobs, "kv_use": sizing.target.kv_use}
        )
        many = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=sizing.replicas,
                max_replicas=sizing.most,
                policy=policy,
                upscale_delay_s=5,
                downscale_delay_s=60,
            )
        }
    replicas = serve.deployment(ServeReplica, name=REPLICAS).options(
        ray_actor_options={"num_cpus": record.cpus, "num_gpus": record.gpus},
        graceful_shutdown_timeout_s=drain_seconds + FRONT_SECONDS + 2 * END_SECONDS,
        health_check_period_s=1, health_check_timeout_s=5, version=_version(record, record.settings), _internal=True, **many,
    )  # fmt: skip
    serve.run(replicas.bind(record.settings, record.key, record.host), name=REPLICAS, route_prefix=None)


def _version(record: ClusterRecord, settings: bytes) -> str:
    """Return what tells changed processes from more of the same: Ray replaces those of another version, a few at a time."""
    parts = msgspec.json.encode([__version__, settings, record.key, record.host, record.cpus, record.gpus])
    return hashlib.sha256(parts).hexdigest()[:16]


# Ray ------------------------------------------------------------------------------------------------------------------


def _start_ray(record: ClusterRecord, port: int, settings: Settings) -> ClusterRecord:
    """Start Ray on this machine, for as long as the cluster. Raises Unavailable."""
    folder = _short(settings.data_dir / "ray")
    command = [
        sys.executable, "-P", "-W", "ignore", "-m", LOOPBACK_MODULE, "start", "--head", f"--port={port}",
        f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", "--include-dashboard=false",
        "--disable-usage-stats", f"--temp-dir={folder}",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **RAY_ENVIRONMENT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    if done.returncode:
        raise Unavailable(f"Ray does not start: {(done.stderr or done.stdout).strip()[-2000:]}")
    return msgspec.structs.replace(record, address=f"{LOOPBACK}:{port}", started_ray=folder)


def _short(folder: Path) -> str:
    """Return a path for a folder that is short enough for the sockets that Ray keeps there. It is in one that others do not
    reach: Ray opens what it is given to everybody.
    """
    link = Path("/tmp") / f"inferd-ray-{os.getuid()}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    link.mkdir(mode=0o700, exist_ok=True)
    if link.lstat().st_uid != os.getuid():
        raise Unavailable(f"{link} is somebody else's")
    link.chmod(0o700)
    return str(link / "r")


def _has_ended(record: ClusterRecord) -> bool:
    """Return True if the cluster's Ray can start nothing any more."""
    return not (ray_lives(record.started_ray) if record.started_ray else answers(record.address))


def _end_without_ray(settings: Settings, record: ClusterRecord) -> None:
    """End what goes on of a cluster without its Ray, on this machine, and what is left of a Ray that was started with it."""
    end_left(settings)
    if record.started_ray:
        _stop_ray(record)


def _stop_ray(record: ClusterRecord) -> None:
    """End the processes of the Ray that was started with the cluster, and of no other."""
    own = ray_processes(record.started_ray)
    for number in ("terminate", "kill"):
        for one in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(one, number)()
        _, own = psutil.wait_procs(own, STOP_SECONDS)


# The file -------------------------------------------------------------------------------------------------------------


def _path(settings: Settings) -> Path:
    return settings.data_dir / CLUSTER_FILE


def _read(settings: Settings) -> ClusterRecord | None:
    try:
        return msgspec.json.decode(_path(settings).read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        return None


def _known(settings: Settings) -> ClusterRecord:
    record = _read(settings)
    if record is None:
        raise NotFound(f"no cluster was started with the data folder {settings.data_dir}: `inferd cluster up`")
    return record


def _write(settings: Settings, record: ClusterRecord) -> None:
    path = _path(settings)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "wb") as file:
        file.write(msgspec.json.encode(record))
