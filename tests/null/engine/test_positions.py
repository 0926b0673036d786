"""Where tokens stand and what they see, against plain lists."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from inferd_runtime.engine.sequences.positions import Positions
from inferd_runtime.engine.sequences.visibility import (
    bits_of,
    bools_of,
    ends_of,
    ends_of_bools,
    keep,
    keep_bits,
    length_of,
    sees,
    sees_from,
)


class Plain:
    """One position and one row per token."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.rows: list[list[bool]] = []

    def append(self, positions: list[int], rows: list[list[bool]]) -> None:
        self.positions += positions
        self.rows += rows

    def go_on(self, count: int) -> None:
        for _ in range(count):
            self.positions.append(self.positions[-1] + 1 if self.positions else 0)
            self.rows.append([True] * len(self.positions))


def check(positions: Positions, plain: Plain, chunk: int) -> None:
    length = len(plain.positions)
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        placement = positions.placement(start, count)
        expected = [[*row, *[False] * (start + count - len(row))] for row in plain.rows[start : start + count]]
        if placement is None:
            assert plain.positions[: start + count] == list(range(start + count))
            assert all(all(row) for row in plain.rows[: start + count])
        else:
            assert placement.positions.tolist() == plain.positions[: start + count]
            assert placement.visible.tolist() == expected
            assert positions.irregular_from is not None


def explicit(draw: st.DrawFn, start: int) -> tuple[list[int], list[list[bool]]]:
    count = draw(st.integers(1, 4))
    places = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    seen = [[*draw(st.lists(st.booleans(), min_size=start + at, max_size=start + at)), True] for at in range(count)]
    return places, seen


@given(st.data(), st.integers(1, 5))
def test_marks_give_what_plain_lists_give(data: Any, chunk: int) -> None:
    positions, plain = Positions(), Plain()
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["explicit", "go on", "truncate", "fork"])):
            case "explicit":
                start = len(plain.positions)
                places, seen = data.draw(st.composite(explicit)(start))
                positions.place(start, places)
                positions.restrict(start, [ends_of_bools(np.array(row)) for row in seen])
                plain.append(places, seen)
            case "go on":
                plain.go_on(data.draw(st.integers(1, 4)))
            case "truncate":
                length = data.draw(st.integers(0, len(plain.positions)))
                positions.truncate(length)
                del plain.positions[length:], plain.rows[length:]
            case "fork":
                length = data.draw(st.integers(0, len(plain.positions)))
                parent, positions = positions, positions.copy(length)
                parent.place(len(plain.positions), [99])
                del plain.positions[length:], plain.rows[length:]
        check(positions, plain, chunk)


def test_what_follows_the_rule_leaves_no_mark() -> None:
    positions = Positions()
    positions.place(3, [3, 4, 5])
    positions.restrict(3, [ends_of([0, 6])] * 3)
    assert positions.irregular_from is None
    assert positions.placement(0, 6) is None
    positions.place(6, [9])
    assert positions.irregular_from == 6
    assert positions.shift == 3
    assert positions.placement(0, 6) is None
    positions.truncate(6)
    assert positions.irregular_from is None


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_runs_are_kept_as_what_is_smaller_and_say_what_bools_say(seen: list[bool]) -> None:
    row, size = np.array(seen), len(seen)
    ends = ends_of_bools(row)
    runs = [len(list(run)) for _, run in groupby([False, *seen])]
    assert length_of(ends) == size
    assert length_of(ends_of([runs[0] - 1, *runs[1:]])) == size
    assert [sees(ends, at) for at in range(-1, size + 2)] == [False, *seen, False, False]
    assert [sees_from(ends, at) for at in range(size + 1)] == [any(seen[at:]) for at in range(size + 1)]
    for length in range(1, size + 1):
        kept = keep(ends, length)
        assert (kept is None) == all(seen[:length])
        as_bits = keep_bits(np.packbits(row), length)
        assert (as_bits is None, np.array_equal(as_bits, kept)) == (kept is None, True)
        if kept is not None:
            assert bools_of(kept, length).tolist() == seen[:length]
            assert np.unpackbits(bits_of(kept, length), count=length).tolist() == seen[:length]
            assert kept.nbytes <= -(-length // 8)


def test_a_large_mask_is_kept_by_its_runs() -> None:
    positions = Positions()
    positions.restrict(0, [ends_of([max(0, at - 511), min(at + 1, 512)]) for at in range(6000)])
    rows = [row for *_, row in positions.marks() if row is not None]
    assert len(rows) == 6000 - 512
    assert sum(row.nbytes for row in rows) == 8 * len(rows)  # bits would take 2.4 million bytes
