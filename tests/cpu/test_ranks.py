"""How ranks add up: few rows in memory that they share, others over the group; and what happens where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from inferd_runtime.models.parallel import join, leave
from inferd_runtime.models.passes import ranks
from inferd_runtime.models.passes.ranks import GroupRanks, SharedSum, SymmetricRanks, ranks_on, symmetric_ranks


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRanks]:
    """A group of this process alone: its sums are what they are made of."""
    before = dict(os.environ)
    join(0, 1, "cpu", tmp_path_factory.mktemp("group") / "store")
    yield GroupRanks()
    leave()
    os.environ.clear()
    os.environ.update(before)


def doubled(part: Tensor, rows: Tensor) -> Tensor:
    return part.copy_(rows) * 2


def test_few_rows_are_added_up_in_shared_memory_and_others_over_the_group(group: GroupRanks) -> None:
    shared = torch.zeros(32)
    both = SymmetricRanks(shared, doubled)
    rows = torch.arange(32.0).view(4, 8)
    assert torch.equal(both.add(rows), rows * 2)
    assert torch.equal(shared, rows.view(-1))
    for other in (torch.ones(5, 8), torch.ones(4, 8, dtype=torch.float64), torch.ones(2, dtype=torch.int64)):
        assert torch.equal(both.add(other.clone()), other)
    assert torch.equal(both.join(rows, 8), rows)


def test_a_cpu_adds_up_over_the_group(group: GroupRanks) -> None:
    assert type(ranks_on(torch.zeros(1))) is GroupRanks


def test_without_symmetric_memory_the_group_serves(group: GroupRanks, caplog: pytest.LogCaptureFixture) -> None:
    """What PyTorch says where there is none, as on a CPU, is an answer."""
    caplog.set_level("INFO")
    assert symmetric_ranks(group, torch.zeros(1)) is None
    assert "without symmetric memory" in caplog.text


def same(part: Tensor, rows: Tensor) -> Tensor:
    return part.copy_(rows).clone()


def broken(part: Tensor, rows: Tensor) -> Tensor:
    raise RuntimeError("no such kernel for this device")


@pytest.mark.parametrize(("total", "served"), [(same, True), (doubled, False), (broken, False)])
def test_sums_are_tried_against_the_groups(
    group: GroupRanks, monkeypatch: pytest.MonkeyPatch, total: SharedSum, served: bool
) -> None:
    monkeypatch.setattr(ranks, "symmetric_memory", lambda like: (torch.zeros(64), total))
    found = symmetric_ranks(group, torch.zeros(1))
    assert isinstance(found, SymmetricRanks) == served
