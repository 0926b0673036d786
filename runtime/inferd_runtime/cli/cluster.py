"""``inferd cluster``: several runtimes as one, on Ray Serve."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.cli.answers import Replica, Replicas, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, print_table, say
from inferd_runtime.cli.parsing import Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.progress import prepare_runner
from inferd_runtime.settings.settings import FIELDS, Settings

NOT_FOR_CLUSTERS = ("url", "server", "keep_warm", "idle_minutes")
ACTIONS = ("up", "status", "scale", "down")
DESCRIPTION = """Serve as a cluster: replicas, each a whole runtime, behind one address.

  up      start it, or upgrade one that runs replica by replica, without a failed request
  status  show its replicas
  scale   change how many there are: those that go end their runs first
  down    end it, and the Ray that `up` has started

Needs inferd[cluster]. Without --ray-address, Ray is started on this machine, on the loopback address alone."""


def cluster(argv: list[str]) -> int:
    """Start, show, resize or end a cluster."""
    parsed = cluster_parser().parse_args(argv)
    if parsed.replicas < 1:
        raise InvalidRequest("--replicas must be positive")
    settings, on_ray = settings_of(parsed), _on_ray()
    if parsed.action == "up":
        _up(on_ray, settings, parsed)
    elif parsed.action == "scale":
        on_ray.scale_cluster(settings, _sizing(on_ray, parsed))
    elif parsed.action == "down":
        on_ray.stop_cluster(settings)
    else:
        _status(on_ray, settings, parsed.as_json)
    return 0


def cluster_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser("cluster", DESCRIPTION)
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--replicas", type=int, default=2, metavar="N", help="how many replicas; with --most, at least")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="let load decide how many, up to N")
    parser.add_argument(
        "--target-jobs", type=float, default=16.0, help="runs and jobs that a replica should have, with --most"
    )
    parser.add_argument(
        "--target-kv", type=float, default=0.7, help="part of its KV cache that should be held, with --most"
    )
    parser.add_argument("--ray-address", default="", metavar="HOST:PORT", help="a Ray that runs already")
    parser.add_argument(
        "--replica-host",
        default="",
        metavar="ADDRESS",
        help="where replicas listen; default: 127.0.0.1, with --ray-address where Ray knows their machines",
    )
    parser.add_argument("--ray-port", type=int, default=6379, help="of the Ray that is started here")
    parser.add_argument("--replica-cpus", type=float, default=1.0, help="processors that each replica asks Ray for")
    parser.add_argument("--replica-gpus", type=float, default=0.0, help="GPUs that each replica asks Ray for")
    add_settings(parser, [name for name in FIELDS if name not in NOT_FOR_CLUSTERS])
    add_json(parser, "print what is shown as JSON")
    return parser


def _on_ray() -> ModuleType:
    try:
        return importlib.import_module("inferd_runtime.cluster.ray_serve.cluster")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InvalidRequest("`inferd cluster` needs Ray: pip install 'inferd[cluster]'") from None


def _sizing(on_ray: ModuleType, parsed: Any) -> Any:
    target = on_ray.ScalingTarget(parsed.target_jobs, parsed.target_kv)
    return on_ray.Sizing(replicas=parsed.replicas, most=parsed.most, target=target)


def _up(on_ray: ModuleType, settings: Settings, parsed: Any) -> None:
    prepare_runner()
    options = on_ray.RayOptions(
        address=parsed.ray_address, port=parsed.ray_port, cpus=parsed.replica_cpus, gpus=parsed.replica_gpus,
        host=parsed.replica_host,
    )  # fmt: skip
    url = on_ray.start_cluster(settings, options, _sizing(on_ray, parsed))
    if parsed.as_json:
        print_json({"url": url, "replicas": parsed.replicas})
    else:
        say(f"the cluster serves on {url}")


def _status(on_ray: ModuleType, settings: Settings, as_json: bool) -> None:
    """Show what Ray says, and what the front does: a front that does not answer, or not to this user, hides nothing of Ray's."""
    found = on_ray.cluster_status(settings)
    replicas, refused = list[Replica](), None
    try:
        replicas = answer_as(Replicas, Server.of(settings).get("/v1/cluster"))["replicas"]
    except InferdError as error:
        refused = error.message
    if as_json:
        print_json({"applications": found, "replicas": replicas, "error": refused})
        return
    for name, one in found.items():
        say(f"{name}: {one['status']} {one['message']}".rstrip())
    if refused is not None:
        say(f"the front: {refused}")
        return
    heads = ("REPLICA", "READY", "DRAINING", "RUNS", "WAITING", "JOBS", "KV")
    rows = [
        (one["name"], one["ready"], one["draining"], one["runs"], one["waiting"], one["jobs"], f"{one['kv_use']:.0%}")
        for one in replicas
    ]
    print_table(heads, [tuple(map(str, row)) for row in rows])
