"""The limits of a run: each is hit exactly where it stands, and says its name, its value and what raises it."""

from __future__ import annotations

import pytest

from inferd_runtime.sandbox.host.meter import LOOK_BYTES, RAISE_WITH, UNCHARGED_BYTES, MemoryMeter, Meter, exceeded
from inferd_runtime.sandbox.messages import Limits

LIMITS = Limits(wall_s=10, cpu_s=2, memory_mb=64, output_bytes=100)


def test_clocks_are_charged_from_the_start_of_the_run() -> None:
    meter = Meter(LIMITS, wall=1000.0, cpu=50.0)
    assert meter.check(1009.9, 51.9) is None
    assert meter.wall_left(1004.0) == 6.0
    assert meter.wall_left(2000.0) == 0.0


@pytest.mark.parametrize(("wall", "cpu", "limit"), [(1010.0, 50.0, "wall_s"), (1000.0, 52.0, "cpu_s")])
def test_a_clock_at_its_limit_is_over(wall: float, cpu: float, limit: str) -> None:
    error = Meter(LIMITS, 1000.0, 50.0).check(wall, cpu)
    assert error is not None
    assert error.detail == {"limit": limit, "value": getattr(LIMITS, limit), "raise_with": RAISE_WITH[limit]}
    assert f"{getattr(LIMITS, limit)} s" in error.message


def test_output_is_allowed_up_to_the_limit_and_not_beyond() -> None:
    meter = Meter(LIMITS, 0, 0)
    assert meter.write(60) == (60, None)
    allowed, error = meter.write(60)
    assert allowed == 40
    assert error is not None
    assert error.detail["limit"] == "output_bytes"
    allowed, error = meter.write(1)
    assert (allowed, error is None) == (0, False)


def test_every_limit_has_a_way_to_raise_it() -> None:
    assert set(RAISE_WITH) == set(Limits.__struct_fields__)
    for limit in RAISE_WITH:
        assert limit in exceeded(limit, "too much", 1).detail["raise_with"]


def test_what_the_host_holds_counts_as_memory() -> None:
    linear = [40 << 20]
    meter = MemoryMeter(LIMITS, lambda: linear[0])
    assert meter.check(20 << 20) is None
    error = meter.check(25 << 20)
    assert error is not None
    assert (error.detail["limit"], error.detail["value"]) == ("memory_mb", 64)
    assert meter.peak_bytes == 65 << 20


def test_the_linear_memory_is_looked_at_seldom_unless_it_is_asked_for() -> None:
    looks: list[int] = []

    def linear() -> int:
        looks.append(1)
        return 0

    meter = MemoryMeter(LIMITS, linear)
    for _ in range(100):
        assert meter.check(1000) is None
    assert not looks
    for _ in range(100):
        meter.check(UNCHARGED_BYTES + LOOK_BYTES + 1)
    assert len(looks) == 1


def test_memory_that_grows_beside_what_is_held_is_seen_at_the_next_look() -> None:
    linear = [1 << 20]
    meter = MemoryMeter(LIMITS, lambda: linear[0])
    assert meter.check(10 << 20) is None
    linear[0] = 60 << 20
    assert meter.check(10 << 20) is None
    assert meter.check(10 << 20, look=True) is not None


def test_events_are_counted() -> None:
    meter = Meter(Limits(output_events=2), 0, 0)
    assert [meter.count_event() is None for _ in range(3)] == [True, True, False]


class Linear:
    """A linear memory of so many bytes, which counts how often it was looked at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.size


def test_memory_may_be_used_up_to_the_limit_and_the_error_says_what_waits() -> None:
    meter = MemoryMeter(LIMITS, Linear(40 << 20))
    assert meter.peak_bytes == 0
    assert meter.check(24 << 20) is None
    assert meter.peak_bytes == 64 << 20
    error = meter.check((25 << 20) + 1)
    assert error is not None
    assert "(25 MiB)" in error.message


def test_what_every_run_needs_is_never_charged() -> None:
    """The linear memory has a limit of its own; it is not looked at for the first part of what the host holds."""
    linear = Linear(1 << 40)
    meter = MemoryMeter(LIMITS, linear)
    assert meter.check(UNCHARGED_BYTES, look=True) is None
    assert not linear.looks
    assert meter.check(UNCHARGED_BYTES + 1, look=True) is not None


def test_where_less_is_held_again_the_next_growth_is_looked_at() -> None:
    linear = Linear(0)
    meter = MemoryMeter(LIMITS, linear)
    meter.check(10 << 20)
    looks = linear.looks
    low = 2 << 20
    meter.check(low)
    meter.check(low + LOOK_BYTES)
    assert linear.looks == looks
    meter.check(low + LOOK_BYTES + 1)
    assert linear.looks == looks + 1
