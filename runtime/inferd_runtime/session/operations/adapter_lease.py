"""Computing with an adapter: what every operation that runs a context through the model does first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.session.state import OpenContext, SessionState


@contextmanager
def leased(state: SessionState, entry: OpenContext, adapter: str) -> Iterator[AdapterLease]:
    """Let the context be computed with an adapter ("": none) from now on, as the body arranges it.

    Whoever computes gives the lease back; if the body raises, this does. Raises NotFound when there is no such adapter, and
    InvalidRequest when the context cannot be computed again with another one.
    """
    lease = entry.model.adapters.lease(state.tenant, adapter)
    with ExitStack() as on_error:
        on_error.callback(lease.release)
        entry.context.use_adapter(lease.key)
        yield lease
        on_error.pop_all()
