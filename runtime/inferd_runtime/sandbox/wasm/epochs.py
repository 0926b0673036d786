"""The clock of the guests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from inferd_runtime.sandbox.wasm.engine_settings import TICK_SECONDS


class EpochTicker(threading.Thread):
    """Calls ``tick`` every 20 ms while ``busy`` is set."""

    def __init__(self, tick: Callable[[], None], busy: threading.Event) -> None:
        super().__init__(name="epochs", daemon=True)
        self._tick = tick
        self._busy = busy

    def run(self) -> None:
        """Tick for ever; sleeps while nothing runs."""
        while True:
            self._busy.wait()
            time.sleep(TICK_SECONDS)
            self._tick()
