"""The engine process: owns the model and its device, serves sessions over ZeroMQ, one thread, one loop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from inferd.protocol import InferdError, ModelInfo
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_runtime.engine.engine import Engine
from inferd_runtime.session.host import ServedModel
from inferd_runtime.session.hub import SessionHub

MESSAGES_PER_STEP = 256
IDLE_MS = 1000


@dataclass(frozen=True)
class EngineSettings:
    """What one engine process serves, and where. ``threads`` 0 and ``pages`` 0 choose by the model's size.

    ``plain``: run transformers' own modules even where there is a fused pass. ``check``: re-add page ownership when idle.
    """

    endpoint: str
    model: str = "tiny"
    device: str = "cpu"
    dtype: str = ""
    threads: int = 0
    pages: int = 0
    page_size: int = 16
    token_budget: int = 512
    plain: bool = False
    check: bool = False


def serve_model(settings: EngineSettings) -> ServedModel:
    """Load the model and build its engine. Raises InferdError."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from inferd_runtime.engine.drivers.torch_driver import TorchDriver
    from inferd_runtime.models.fused import fuse
    from inferd_runtime.models.loading import load
    from inferd_runtime.models.passes import PlainPass
    from inferd_runtime.models.sizing import default_pages, default_threads

    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.threads or 1)
    loaded = load(settings.model, device=settings.device, dtype=settings.dtype)
    torch.set_num_threads(settings.threads or default_threads(loaded.module))
    kv = loaded.probe.kv
    pages = settings.pages or default_pages(kv, loaded.module, loaded.max_context, settings.page_size)
    fused = None if settings.plain else fuse(loaded.module, kv, loaded.probe.rules)
    like = next(loaded.module.parameters())
    driver = TorchDriver(
        fused or PlainPass(loaded.module), like, kv, vocab_size=loaded.vocab_size, max_context=loaded.max_context,
        pages=pages, page_size=settings.page_size,
    )  # fmt: skip
    table = TokenTable.from_tokenizer_json(
        loaded.tokenizer.json, vocab_size=loaded.vocab_size, eos_ids=loaded.tokenizer.eos_tokens
    )
    info = ModelInfo(
        settings.model, loaded.vocab_size, loaded.max_context, settings.page_size,
        list(loaded.tokenizer.eos_tokens), loaded.fingerprint,
    )  # fmt: skip
    engine = Engine(driver, token_budget=settings.token_budget)
    return ServedModel(info, engine, loaded.tokenizer, GrammarCompiler(table))


def run(settings: EngineSettings) -> None:
    """Bind, load, serve until SIGTERM or SIGINT."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(settings.endpoint)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    model = serve_model(settings)
    hub = SessionHub({model.info.name: model}, lambda identity, frames: socket.send_multipart([identity, *frames]))
    busy = False
    parent = os.getppid()
    while not stopping and os.getppid() == parent:
        if socket.poll(0 if busy else IDLE_MS):
            receive(socket, hub)
        busy = model.engine.step()
        if settings.check and not busy:
            model.engine.pool.check_integrity(hub.held_pages())
    hub.close_all()
    socket.close()
    context.term()


def receive(socket: zmq.Socket[bytes], hub: SessionHub) -> None:
    """Take the messages that have arrived, but not so many that the running streams would wait."""
    for _ in range(MESSAGES_PER_STEP):
        try:
            identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        hub.receive(identity, frames)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m inferd_runtime.server.engine_process --endpoint ipc://... --model tiny``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="")
    for name, value in (("threads", 0), ("pages", 0), ("page-size", 16), ("token-budget", 512)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--plain", action="store_true", help="run transformers' own modules, never the fused pass")
    parser.add_argument("--check", action="store_true", help="re-add page ownership whenever the engine is idle")
    try:
        run(EngineSettings(**vars(parser.parse_args(argv))))
    except InferdError as error:
        print(error.message, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
