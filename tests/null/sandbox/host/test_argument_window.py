"""Large arguments wait for the engine's answers; small ones, and a single larger one, do not."""

from __future__ import annotations

from inferd_runtime.sandbox.host.argument_window import LARGE_BYTES, WINDOW_BYTES, ArgumentWindow


def test_large_calls_have_room_up_to_the_window_and_small_ones_always() -> None:
    window = ArgumentWindow()
    for ticket in range(WINDOW_BYTES // LARGE_BYTES):
        assert window.has_room(LARGE_BYTES)
        window.sent(ticket, LARGE_BYTES)
    assert not window.has_room(LARGE_BYTES)
    assert window.has_room(LARGE_BYTES - 1)
    window.answered(3)
    window.answered(3)
    assert window.has_room(LARGE_BYTES)
    assert not window.has_room(LARGE_BYTES + 1)


def test_one_call_beyond_the_window_goes_alone() -> None:
    window = ArgumentWindow()
    assert window.has_room(16 * WINDOW_BYTES)
    window.sent(1, 16 * WINDOW_BYTES)
    assert not window.has_room(LARGE_BYTES)
    window.answered(1)
    assert window.has_room(16 * WINDOW_BYTES)
