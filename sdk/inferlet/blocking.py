"""Operations of the runtime as calls that block, where Pie's do.

A program in the sandbox has one thread: while it blocks, its other tasks stand still, as in Pie.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from inferd.protocol import Unavailable
from inferd.transport import Port


@runtime_checkable
class BlockingTransport(Protocol):
    """A transport that can also wait for a reply without an event loop."""

    def call_blocking(self, request: Any) -> Any:
        """Send a request, block until its reply is there, and return it. Raises what the runtime answered."""


def call(port: Port, request: Any) -> Any:
    """Send a request, and block until its reply is there. Raises Unavailable where the connection cannot do that."""
    transport = port.transport
    if not isinstance(transport, BlockingTransport):
        raise Unavailable(
            "inferlet blocks, which this connection cannot: run the program in the runtime, or connect the script with "
            "`with inferlet.connect(...)`"
        )
    return transport.call_blocking(request)


def open_handle(port: Port, request: Any) -> Any:
    """As :func:`call`, for a request that makes a handle: those that were garbage-collected are released first."""
    for abandoned in port.take_abandoned():
        call(port, abandoned)
    return call(port, request)
