"""A loop that waits for messages hears at once that it is to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

LOOP = """
import select
from inferd_runtime.server.processes.stop_request import StopRequest
stop = StopRequest()
print("waits", flush=True)
poller = select.poll()
poller.register(stop, select.POLLIN)
woken = poller.poll(60_000)
print(bool(woken), stop.received, flush=True)
"""


def test_a_signal_ends_a_poll() -> None:
    with subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == "True True\n"
