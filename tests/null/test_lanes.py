"""Slow work in threads: whose turn it is."""

from __future__ import annotations

import threading

from inferd_runtime.lanes import Lanes, Piece

SECONDS = 10.0


def test_a_tenant_never_has_more_lanes_than_its_own() -> None:
    lanes, hold, begun = Lanes(3, "test", of_tenant=2), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        assert hold.wait(SECONDS)

    pieces = [Piece(tenant, work, lambda ended: None) for tenant in ("many", "many", "many", "few")]
    for piece in pieces:
        lanes.submit(piece)
    for _ in range(3):
        assert begun.acquire(timeout=SECONDS)
    assert [piece.begun for piece in pieces] == [True, True, False, True]
    hold.set()
    while not pieces[2].begun:
        assert lanes.wait(SECONDS)
        lanes.poll()
    lanes.close()
