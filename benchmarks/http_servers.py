"""The servers under test: ours, with the processor time of its processes, and ``transformers serve`` on the same weights."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from http_clients import Target
from sandbox_fleet import TOKEN, Client, serving

from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.chat.builtin import chat_program_file

PROGRAM = "chat"
BATCHED = ("--continuous-batching", "--cb-max-batch-tokens", "512", "--cb-num-blocks", "256")
"""Of ``transformers serve``: without the sizes it plans for a device's memory."""
PATIENCE_SECONDS = 120.0
ROLES = {"engine_process": "engine", "sandbox.worker": "workers"}
Seconds = Mapping[str, float]


@dataclass(frozen=True)
class OurServer:
    """A server with the built-in program, and the same program uploaded as ``chat``."""

    direct: Target
    program: Target
    process: psutil.Process
    client: Client

    def processor_seconds(self) -> Seconds:
        """Return the processor seconds so far of gateway, engine, workers and others."""
        found = {"gateway": _seconds(self.process), "engine": 0.0, "workers": 0.0, "others": 0.0}
        for child in self.process.children(recursive=True):
            command = " ".join(child.cmdline())
            found[next((role for part, role in ROLES.items() if part in command), "others")] += _seconds(child)
        return found

    def jobs(self, client: Client) -> int:
        """Return how many jobs the engine works on now."""
        page = client.text("/metrics")
        return next(int(float(line.split()[1])) for line in page.splitlines() if line.startswith("inferd_engine_jobs "))


@dataclass(frozen=True)
class PeerServer:
    """``transformers serve``."""

    target: Target
    process: psutil.Process

    def processor_seconds(self) -> Seconds:
        """Return its processor seconds so far."""
        return {"peer": sum(_seconds(one) for one in (self.process, *self.process.children(recursive=True)))}


def _seconds(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


@contextmanager
def our_server(model: str) -> Iterator[OurServer]:
    """Start a server that ends with the block."""
    with serving("--model", model, "--threads", "1") as (client, process):
        files = {"main.py": chat_program_file().read_text()}
        client.ask("POST", "/v1/programs", {"files": files, "name": PROGRAM})
        targets = (Target(client.url, name, TOKEN) for name in (model, PROGRAM))
        yield OurServer(*targets, process, client)


@contextmanager
def peer_server(model: str, *options: str) -> Iterator[PeerServer]:
    """Start ``transformers serve`` on a model's weights, in one thread; its model does not know an end of text."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        shutil.copytree(resolve(model), folder)
        (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "pad_token_id": 0}))
        with _serve(folder, Path(place) / "log", options) as (url, process):
            yield PeerServer(Target(url, str(folder), plain=True), process)


@contextmanager
def _serve(folder: Path, log: Path, options: tuple[str, ...]) -> Iterator[tuple[str, psutil.Process]]:
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--host", "127.0.0.1", "--port",
        str(port), "--device", "cpu", "--dtype", "float32", "--log-level", "error", *options,
    ]  # fmt: skip
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("wb") as out, subprocess.Popen(command, env=os.environ | alone, stdout=out, stderr=out) as child:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, child, log)
            yield url, psutil.Process(child.pid)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()


def _wait(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers. Raises RuntimeError if it ends, or takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while child.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"`transformers serve` did not start (it needs fastapi): {log.read_text()[-1000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
