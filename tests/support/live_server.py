"""A server of its own with the tiny model, for tests that speak to it as strangers do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai

ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"


@dataclass(frozen=True)
class LiveServer:
    """Where it listens; ANN and BOB are tenants. Clients are closed with the server."""

    url: str
    opened: ExitStack

    def openai(self, token: str = ANN) -> openai.OpenAI:
        """Return OpenAI's client, which tries once."""
        client = openai.OpenAI(api_key=token, base_url=f"{self.url}/v1", max_retries=0, timeout=60)
        return self.opened.enter_context(client)

    def anthropic(self, token: str = ANN) -> anthropic.Anthropic:
        """Return Anthropic's client, which tries once."""
        client = anthropic.Anthropic(api_key=token, base_url=self.url, max_retries=0, timeout=60)
        return self.opened.enter_context(client)


@contextmanager
def live_server(folder: Path, *options: str) -> Iterator[LiveServer]:
    """Start ``inferd serve`` with these options, and end it with the block."""
    tokens = folder / "tokens"
    tokens.write_text(f"{ANN} ann\n{BOB} bob\n")
    tokens.chmod(0o600)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("INFERD_", "XDG_"))}
    cache = {key: os.environ[key] for key in ("INFERD_CACHE_DIR", "XDG_CACHE_HOME") if key in os.environ}
    moved = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    command = [sys.executable, "-m", "inferd_runtime.cli", "serve", "--port", "0", "--json", "--threads", "1"]
    with subprocess.Popen(
        [*command, "--tokens-file", str(tokens), *options], env={**kept, **cache, **moved, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            with ExitStack() as opened:
                yield LiveServer(json.loads(line)["url"], opened)
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
