"""``python -m inferd_runtime.server.engine_process --endpoint ipc://FILE --settings JSON``."""

from __future__ import annotations

import sys

from inferd_runtime.server.engine_process.boot import serve
from inferd_runtime.server.engine_process.command import run_command

if __name__ == "__main__":
    sys.exit(run_command(serve))
