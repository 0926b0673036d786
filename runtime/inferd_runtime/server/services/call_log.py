"""What programs asked of the world outside, for three readers: the run's events, the audit log, the server's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferd_runtime.log_lines import run_fields
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.tenancy.rates import MinuteBucket

REFUSED_PER_MINUTE = 60
"""Calls of one tenant that were refused before anything was sent, and are told of: a flood of them must not fill the disk."""

log = logging.getLogger("inferd.calls")


class CallLog:
    """Tells of calls once they are over. Entries hold names, places and figures: no texts, no query values, no secrets."""

    def __init__(self, audit: Callable[[dict[str, Any]], None] = lambda entry: None) -> None:
        self.audit = audit
        self._refused: dict[str, MinuteBucket] = {}

    def refused(self, caller: Caller, entry: Mapping[str, Any]) -> None:
        """Tell of a call that was refused, unless its tenant has had too many of them."""
        bucket, now = self._refused.setdefault(caller.tenant, MinuteBucket()), time.monotonic()
        if bucket.wait(REFUSED_PER_MINUTE, now) <= 0:
            bucket.charge(REFUSED_PER_MINUTE, now)
            self.note(caller, entry)

    def note(self, caller: Caller, entry: Mapping[str, Any]) -> None:
        """Tell of a call. ``entry`` begins with ``call``, which says of what kind it was."""
        request = ""
        if caller.run is not None:
            caller.run.called(msgspec.json.encode(entry).decode())
            request = caller.run.request
        self.audit({"time": time.time(), "tenant": caller.tenant, "subject": caller.id, **entry})
        line = " ".join(f"{key}={value}" for key, value in entry.items())
        log.info("%s", line, extra=run_fields(caller.id, caller.tenant, request))
