"""Ray on this machine alone: everything that it listens on is bound to the loopback address.

Ray turns 127.0.0.1 into the machine's own address, so that other machines could join, and then listens on all of them. Whoever
reaches its ports runs code as the user who started it. So functions of Ray are replaced, in the process that starts it and in
those that connect to it, and what is then bound is looked at by a test.

    python -P -m inferd_runtime.cluster.ray_serve.loopback start --head ...      # Ray's own command line
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

LOOPBACK = "127.0.0.1"


def stay_on_loopback() -> None:
    """Have Ray use the loopback address in this process where it is told to."""
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = _as_it_is
    services.get_node_ip_address = _loopback


def bind_actor_to_loopback() -> None:
    """Have the server that Serve opens in each actor listen on the loopback address, where this node is on that alone."""
    if own_address() != LOOPBACK:
        return
    replica: Any = importlib.import_module("ray.serve._private.replica")
    add = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add(server, address.replace("[::]", LOOPBACK))


def own_address() -> str:
    """Return the address by which Ray knows this machine."""
    return str(importlib.import_module("ray.util").get_node_ip_address())


def _as_it_is(host: str) -> str:
    return host


def _loopback(address: str | None = None) -> str:
    return LOOPBACK


def main() -> None:
    """Run Ray's command line. A Ray that it starts has no server for Ray's own clients, which would listen for half a minute more
    than Ray lives, and keep the next one from its port.
    """
    stay_on_loopback()
    sys.argv[0] = "ray"
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    scripts.get_ray_client_dependency_error = lambda: "not wanted"
    scripts.main()


if __name__ == "__main__":
    main()
