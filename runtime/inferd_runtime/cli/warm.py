"""Servers that ``inferd run`` finds, or leaves behind for a while, so that the next run need not load the model again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.cli.answers import Models, Readiness, answer_as
from inferd_runtime.cli.client import SERVER_FILE, Server
from inferd_runtime.file_cache import locked, private_folder
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.settings.settings import Settings

FOLDER = "warm"
NOTE = "settings.json"
LOG = "server.log"
POLL_SECONDS = 0.02
LOG_TAIL = 2000
REACH = ("http_allow", "http_body_bytes", "http_ca", "mcp_file")
"""Settings that say what a run may reach: another run's server is not used for it."""
CHILD = [sys.executable, "-P", "-m", "inferd_runtime.cli.warm_server"]


def find_server(settings: Settings) -> Server | None:
    """Return a server of this user that is ready and has the models of ``settings``: one that was left behind with the same
    settings of the engine, else, with ``--server auto``, the one that `inferd serve` started.
    """
    warm = Server.of(_warm_settings(settings))
    if _folder(settings).is_dir() and _is_ready(warm):
        return warm
    if settings.server != "auto":
        return None
    names = [model.name for model in settings.engine.model]
    try:
        own = Server.of(settings)
        served = _models(own) if _is_ready(own) else []
    except InferdError:
        return None
    return own if served[:1] == names[:1] and {*names} <= {*served} else None


def start_server(settings: Settings) -> Server:
    """Start a server that outlives this process and ends by itself after ``keep_warm`` minutes without work.

    One at a time is started of the same settings. Raises Unavailable with what it printed if it does not come up.
    """
    folder = _folder(settings)
    private_folder(settings.state_dir)
    private_folder(folder.parent)
    private_folder(folder)
    with locked(folder / "start.lock", lambda: None):
        server = find_server(replace(settings, server="own"))
        return server or _wait_ready(_spawn(settings, folder), settings)


def warm_servers(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the servers that were left behind and still run: their models, url, pid, and minutes without work that they stay."""
    for path in sorted((settings.state_dir / FOLDER).glob(f"*/{SERVER_FILE}")):
        try:
            about = json.loads(path.read_text())
            kept = decode_settings((path.parent / NOTE).read_bytes(), Settings)
            os.kill(about["pid"], 0)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, InferdError):
            continue
        names = [model.name for model in kept.engine.model]
        yield {"models": names, "url": about["url"], "pid": about["pid"], "idle_minutes": kept.idle_minutes}


def _spawn(settings: Settings, folder: Path) -> int:
    """Start the server in a session of its own, so that it stays when the terminal goes. Returns its process id."""
    (folder / NOTE).write_bytes(encode_settings(_warm_settings(settings)))
    files = [
        (os.POSIX_SPAWN_OPEN, 0, str(folder / NOTE), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(folder / LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(CHILD[0], CHILD, os.environ, file_actions=files, setsid=True)


def _wait_ready(pid: int, settings: Settings) -> Server:
    """Wait until a server that was just started is ready. It ends if this process is interrupted meanwhile."""
    deadline = time.monotonic() + settings.engine_start_s
    warm = _warm_settings(settings)
    try:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if (warm.state_dir / SERVER_FILE).exists() and _is_ready(server := Server.of(warm)):
                return server
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGTERM)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise
    printed = (warm.state_dir / LOG).read_text(errors="replace")[-LOG_TAIL:]
    raise Unavailable(f"the server that is to stay warm did not start:\n{printed.strip()}")


def _folder(settings: Settings) -> Path:
    """Return the folder of the warm server with these settings of the engine, and of what programs may reach and find."""
    reach = [str(getattr(settings, name)) for name in REACH]
    kept = [str(settings.secrets), settings.context_store, str(settings.contexts)]
    asked = encode_settings(replace(settings.engine, timings=False)) + encode_settings([*reach, *kept])
    key = hashlib.sha256(asked).hexdigest()[:16]
    return settings.state_dir / FOLDER / key


def _warm_settings(settings: Settings) -> Settings:
    folder = _folder(settings)
    return replace(
        settings, secrets_file=settings.secrets, context_dir=settings.shared_context_dir, state_dir=folder,
        data_dir=folder / "data", url=None, token=None, tokens_file=None, host="127.0.0.1", port=0,
        idle_minutes=settings.keep_warm, workers=1, log_format="console",
    )  # fmt: skip


def _is_ready(server: Server) -> bool:
    try:
        return answer_as(Readiness, server.get("/readyz"))["ready"]
    except InferdError:
        return False


def _models(server: Server) -> list[str]:
    return [model["name"] for model in answer_as(Models, server.get("/v1/models"))["models"]]
