"""Which way weights are held, by times that are made up; and that they are measured once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from inferd_runtime.models.weights import choice
from inferd_runtime.models.weights.choice import choose_dtype, choose_ways, ways_of
from inferd_runtime.models.weights.host_products import DENSE, Way
from inferd_runtime.models.weights.timing import ROW_COUNTS, TimesWanted, WayTime, times_of

LARGE, SMALL = (3072, 576), (64, 64)


def timed(name: str, *seconds: float, steady: bool = True, shape: tuple[int, int] = LARGE, least: int = 1) -> WayTime:
    return WayTime(*shape, name, least, steady, seconds)


def test_the_fastest_over_all_row_counts_is_chosen() -> None:
    assert choose_ways([timed("dense", 1, 9, 9), timed("packed", 2, 2, 2, least=2)]) == {LARGE: Way("packed", 2)}
    assert choose_ways([timed("dense", 1, 2, 2), timed("packed", 2, 2, 2)]) == {LARGE: DENSE}


def test_each_shape_has_its_own_way() -> None:
    times = [timed("dense", 9, 9, 9), timed("packed", 2, 2, 2)]
    times += [timed("dense", 1, 1, 1, shape=SMALL), timed("packed", 5, 5, 5, shape=SMALL)]
    assert choose_ways(times) == {LARGE: Way("packed"), SMALL: DENSE}


def test_a_way_whose_bits_depend_on_the_company_has_to_be_much_faster() -> None:
    packed = timed("packed", 3, 3, 3)
    assert choose_ways([timed("dense", 2, 2, 2, steady=False), packed]) == {LARGE: Way("packed")}
    assert choose_ways([timed("dense", 1, 1, 1, steady=False), packed]) == {LARGE: DENSE}


@pytest.mark.parametrize(
    ("stored", "narrow", "chosen"),
    [
        (torch.bfloat16, 0.5, torch.bfloat16),
        (torch.bfloat16, 0.95, torch.float32),
        (torch.float32, 0.1, torch.float32),
        (torch.float16, 0.1, torch.float32),
    ],
    ids=str,
)
def test_bfloat16_is_for_checkpoints_in_it_where_it_is_faster(
    stored: torch.dtype, narrow: float, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(wanted: TimesWanted) -> list[WayTime]:
        each = narrow if wanted.dtype == "bfloat16" else 1.0
        return [timed("packed", each, each, each, shape=shape) for shape in wanted.shapes]

    monkeypatch.setattr(choice, "times_of", times)
    assert choose_dtype([LARGE, LARGE, SMALL], stored) == chosen


def test_only_the_ways_that_are_named_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def times(wanted: TimesWanted) -> list[WayTime]:
        asked.append(wanted.names)
        return [timed(name, 1, 1, 1 if name == "half" else 2) for name in wanted.names]

    monkeypatch.setattr(choice, "times_of", times)
    assert ways_of([LARGE], torch.float32, ("dense", "packed", "half"))[LARGE].name == "half"
    assert ways_of([LARGE], torch.float32, ("dense", "packed"))[LARGE].name != "half"
    assert ways_of([LARGE], torch.float32, ("int4",)) == {LARGE: Way("int4")}
    assert asked == [("dense", "packed", "half"), ("dense", "packed")]


def test_times_are_measured_once_and_again_where_they_are_damaged(tmp_path: Path) -> None:
    wanted = TimesWanted.of([SMALL, SMALL], torch.float32, ("dense", "packed"))
    ticks = itertools.count()
    first = times_of(wanted, tmp_path, lambda: float(next(ticks)))
    assert [one.shape for one in first] == [SMALL, SMALL]
    assert all(len(one.seconds) == len(ROW_COUNTS) for one in first)

    def stopped() -> float:
        raise AssertionError("measured again")

    assert times_of(wanted, tmp_path, stopped) == first
    (file,) = tmp_path.glob("*.json")
    file.write_text("[]")
    assert times_of(wanted, tmp_path, lambda: float(next(ticks))) == first


def test_other_shapes_and_threads_are_measured_anew() -> None:
    wanted = TimesWanted.of([SMALL], torch.float32, ("dense",))
    others = [
        TimesWanted.of([LARGE], torch.float32, ("dense",)),
        TimesWanted.of([SMALL], torch.bfloat16, ("dense",)),
        TimesWanted.of([SMALL], torch.float32, ("packed",)),
    ]
    assert len({one.key() for one in (wanted, *others)}) == 4
