"""The engine's end of its socket."""

from __future__ import annotations

from pathlib import Path

import zmq

from inferd_runtime.sandbox.host.pending_calls import MAX_OPEN
from inferd_runtime.server.engine_process.boot import bind
from inferd_runtime.session.wire import send_frames

SECONDS = 30
REPLY = bytes(16 << 10)
"""Larger than what the system has room for in a thousand of them."""


def test_no_reply_to_calls_that_may_be_open_is_lost_while_nobody_reads(tmp_path: Path) -> None:
    with zmq.Context() as context:
        engine, session = bind(context, f"ipc://{tmp_path}/engine"), context.socket(zmq.DEALER)
        session.setsockopt(zmq.IDENTITY, b"session")
        session.set_hwm(1)
        session.setsockopt(zmq.LINGER, 0)
        session.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        session.connect(f"ipc://{tmp_path}/engine")
        session.send(b"here")
        engine.recv_multipart()
        for _ in range(3):
            for _ in range(MAX_OPEN):
                send_frames(engine, [b"session", REPLY])
            for _ in range(MAX_OPEN):
                assert session.recv() == REPLY
        session.close()
        engine.close()
