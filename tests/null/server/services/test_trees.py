"""What runs of one tree may use together: no child gets more than is left, and what all use is held against the root's limits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import Limits, Used
from inferd_runtime.server.services.launches.trees import MAX_CHILDREN, MAX_DEPTH, MAX_STARTED, TreeNode

ROOT = Limits(wall_s=100.0, cpu_s=30.0, memory_mb=256, output_bytes=1 << 20, output_events=1000)


def root(limits: Limits | None = ROOT) -> TreeNode:
    return TreeNode("root", limits, 100.0)


def test_a_child_gets_no_more_than_is_left() -> None:
    tree = root()
    tree.used = Used("root", cpu_s=10.0, memory_mb=56, output_bytes=1 << 19, output_events=100)
    given = tree.room_for(
        Limits(wall_s=1e6, cpu_s=1e6, memory_mb=1 << 20, output_bytes=1 << 40, output_events=1 << 40), 40.0
    )
    assert given == Limits(wall_s=60.0, cpu_s=20.0, memory_mb=200, output_bytes=1 << 19, output_events=900)
    assert tree.room_for(msgspec.structs.replace(ROOT, cpu_s=1.0), 0.0).cpu_s == 1.0


def test_what_descendants_use_and_used_counts_to_the_root() -> None:
    tree = root()
    child = tree.add("a", ROOT, 0.0)
    grandchild = child.add("b", ROOT, 0.0)
    tree.used, child.used = Used("root", 1.0, 50, 10, 1), Used("a", 2.0, 60, 20, 2)
    grandchild.used = Used("b", 4.0, 70, 40, 4)
    assert tree.total() == Used("root", 7.0, 180, 70, 7)
    child.remove(grandchild)
    assert tree.total() == Used("root", 7.0, 110, 70, 7)
    tree.remove(child)
    assert tree.total() == Used("root", 7.0, 50, 70, 7)
    assert child.budget is grandchild.budget is tree


@pytest.mark.parametrize("field", ["cpu_s", "memory_mb", "output_bytes", "output_events"])
def test_the_sum_is_held_against_the_roots_limits(field: str) -> None:
    tree = root()
    limit = getattr(ROOT, field)
    for number in range(2):
        tree.add(f"{number}", ROOT, 0.0).used = msgspec.structs.replace(Used(""), **{field: limit / 2})
    assert tree.exceeded() is None
    tree.used = msgspec.structs.replace(Used(""), **{field: 1})
    error = tree.exceeded()
    assert error is not None
    assert error.detail["limit"] == field
    assert error.detail["value"] == limit


@pytest.mark.parametrize(
    ("used", "now", "limit"),
    [
        (Used("", cpu_s=29.95), 0.0, "cpu_s"),
        (Used("", memory_mb=220), 0.0, "memory_mb"),
        (Used("", output_bytes=1 << 20), 0.0, "output_bytes"),
        (Used("", output_events=999), 0.0, "output_events"),
        (Used(""), 99.95, "wall_s"),
    ],
)
def test_there_is_no_child_where_too_little_is_left(used: Used, now: float, limit: str) -> None:
    tree = root()
    tree.used = used
    with pytest.raises(LimitExceeded) as error:
        tree.room_for(ROOT, now)
    assert error.value.detail["limit"] == limit


def test_a_child_that_lacks_memory_may_wait_for_others_to_end_and_for_nothing_else() -> None:
    tree = root()
    tree.used = Used("root", memory_mb=220)
    with pytest.raises(LimitExceeded) as alone:
        tree.room_for(ROOT, 0.0)
    tree.used = Used("root", memory_mb=60)
    for _ in range(4):
        tree.add("x", ROOT, 0.0)
    with pytest.raises(LimitExceeded) as beside:
        tree.room_for(ROOT, 0.0)
    assert [error.value.detail["limit"] for error in (alone, beside)] == ["memory_mb", "memory_mb"]
    assert [error.value.detail.get("retry_after_s", 0) > 0 for error in (alone, beside)] == [False, True]


def test_a_grandchild_ends_no_later_than_its_parent() -> None:
    tree = root()
    child = tree.add("a", msgspec.structs.replace(ROOT, wall_s=10.0), 50.0)
    assert child.room_for(ROOT, 55.0).wall_s == 5.0


def test_depth_and_numbers_are_bounded() -> None:
    node = root()
    for _ in range(MAX_DEPTH):
        node.room_for(ROOT, 0.0)
        node = node.add("x", ROOT, 0.0)
    with pytest.raises(LimitExceeded) as error:
        node.room_for(ROOT, 0.0)
    assert error.value.detail["limit"] == "launch_depth"
    wide = root()
    for number in range(MAX_STARTED):
        child = wide.add(f"{number}", ROOT, 0.0)
        if number == MAX_CHILDREN - 1:
            with pytest.raises(LimitExceeded) as error:
                wide.room_for(ROOT, 0.0)
            assert error.value.detail["limit"] == "children"
            assert error.value.detail["retry_after_s"] > 0
        if number >= MAX_CHILDREN - 1:
            wide.remove(child)
    with pytest.raises(LimitExceeded) as error:
        wide.room_for(ROOT, 0.0)
    assert error.value.detail["limit"] == "descendants"


def test_children_of_a_script_have_budgets_of_their_own() -> None:
    script = TreeNode("ws/1", None, float("inf"))
    first, second = (script.add(name, ROOT, 0.0) for name in "ab")
    first.used = Used("a", cpu_s=100.0)
    assert first.budget is first
    assert first.exceeded() is not None
    assert second.exceeded() is None
    assert script.exceeded() is None
    assert script.room_for(ROOT, 1e9) == ROOT


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 5.0), st.booleans()), max_size=30))
def test_no_order_of_starts_and_ends_launders_processor_time(steps: list[tuple[int, float, bool]]) -> None:
    tree, spent = root(), 0.0
    nodes = [tree]
    for which, cpu, ends in steps:
        parent = nodes[which % len(nodes)]
        try:
            limits = parent.room_for(ROOT, 0.0)
        except LimitExceeded:
            continue
        assert limits.cpu_s <= ROOT.cpu_s - spent + 1e-6
        node = parent.add("x", limits, 0.0)
        cpu = min(cpu, limits.cpu_s)
        node.used, spent = Used("x", cpu_s=cpu), spent + cpu
        if ends:
            parent.remove(node)
        else:
            nodes.append(node)
        assert tree.total().cpu_s == pytest.approx(spent)
