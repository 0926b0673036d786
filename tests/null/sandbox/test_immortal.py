"""Which words of a memory image are an object's count, and become an immortal one's."""

from __future__ import annotations

import pytest

from inferd_runtime.sandbox.runner_build.immortal import IMMORTAL, MOST_COUNTED, OBJECT, pin

START = 0x1000
KIND = 0x4444


def image_of(*objects: tuple[int, int]) -> bytearray:
    return bytearray(b"".join(OBJECT.pack(*each) for each in objects))


def test_objects_become_immortal_and_nothing_else_changes() -> None:
    image = image_of((1, KIND), (2, KIND), (3, KIND + 8))
    assert pin(image, START, [(START, KIND), (START + 16, KIND + 8)]) == 2
    assert image == image_of((IMMORTAL, KIND), (2, KIND), (IMMORTAL, KIND + 8))


@pytest.mark.parametrize("count", [0, MOST_COUNTED, 0x2140B90, IMMORTAL, 7 << 28], ids=hex)
def test_what_was_freed_or_is_immortal_already_is_left_alone(count: int) -> None:
    image = image_of((count, KIND))
    assert pin(image, START, [(START, KIND)]) == 0
    assert image == image_of((count, KIND))


def test_an_object_that_came_later_than_the_snapshot_is_left_alone() -> None:
    image = image_of((1, KIND))
    later = [(START, KIND + 8), (START - 8, KIND), (START + 4, KIND), (START + 8, KIND)]
    assert pin(image, START, later) == 0
    assert image == image_of((1, KIND))
