"""Slow work in threads: whose turn it is."""

from __future__ import annotations

import threading
import weakref
from functools import partial

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


def test_a_piece_that_gives_way_keeps_nobody_from_a_lane() -> None:
    """Two tenants' constraints of several seconds each had all others wait for them."""
    lanes, hold = Lanes(1, "test", aside=1), threading.Event()

    def slow() -> None:
        lanes.give_way()
        assert hold.wait(SECONDS)

    first, second, third = (
        Piece(tenant, work, lambda ended: None) for tenant, work in zip("abc", (slow, slow, int), strict=True)
    )
    for piece in (first, second, third):
        lanes.submit(piece)
    while not second.slow:
        lanes.wait(SECONDS)
        lanes.poll()
    lanes.poll()
    assert not third.begun, "as many as may stand aside do, and the next holds the lane"
    hold.set()
    while not third.begun:
        assert lanes.wait(SECONDS)
        lanes.poll()
    lanes.close()


def test_a_piece_that_nobody_wants_holds_nothing_while_others_run() -> None:
    """It stayed in line, with the text that it was about, for as long as the pieces before it took."""
    lanes, hold, wanted = Lanes(1, "test"), threading.Event(), [True]
    lanes.submit(Piece("t", partial(hold.wait, SECONDS), lambda ended: None))
    text = {1}
    held = weakref.ref(text)
    lanes.submit(Piece("t", partial(len, text), lambda ended: None, lambda: wanted[0]))
    lanes.submit(Piece("t", lambda: None, lambda ended: None))
    del text
    lanes.drop_unwanted("t")
    assert lanes.waiting("t") == 2
    wanted[0] = False
    lanes.drop_unwanted("t")
    assert lanes.waiting("t") == 1
    assert held() is None
    hold.set()
    lanes.close()
