"""Small parts of the engine on their own: what counts as plain, what an error names, what is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from inferd.protocol import MAX_DRAFT, InvalidRequest, Sampling
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.overlap import is_plain
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import priority_weight
from inferd_runtime.engine.scheduling.scheduler import _unused_rows
from inferd_runtime.engine.stages import Work
from inferd_runtime.engine.verification import split_result
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Outputs, Placement
from inferd_runtime.speculation.drafts import Draft
from inferd_runtime.testing.null_driver import NullDriver

GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)
PLAIN = Work([1], 1, sampler=GREEDY)
MORE: dict[str, Any] = {
    "rows": 2, "sampler": None, "draft": Draft([2], [-1], ["a"], [1.0]), "hidden": 1, "scored": True,
    "masks": np.zeros((1, 1), np.int32), "adjustments": [], "placement": Placement(np.arange(1), np.ones((1, 1), np.bool_)),
}  # fmt: skip


def test_a_row_that_brings_one_token_is_plain() -> None:
    assert is_plain(PLAIN)
    assert is_plain(PLAIN._replace(tokens=[1, 2, 3]))


@pytest.mark.parametrize("field", MORE)
def test_a_row_that_brings_more_or_needs_more_is_not_plain(field: str) -> None:
    assert not is_plain(PLAIN._replace(**{field: MORE[field]}))


@pytest.mark.parametrize(("tokens", "wrong"), [([0, 31, 32], 32), ([0, -1], -1), ([99, 0], 99)])
def test_the_token_outside_the_vocabulary_is_named(tokens: list[int], wrong: int) -> None:
    context = Engine(NullDriver(vocab_size=32)).create_context()
    with pytest.raises(InvalidRequest, match=f"token id {wrong} is outside the vocabulary of 32"):
        context.append(tokens)
    assert context.tokens == []
    context.append([0, 31])


@dataclass
class Remembered:
    """What sources keep of a context."""

    length: int = 0


def test_a_released_context_forgets_everything() -> None:
    engine = Engine(NullDriver())
    context: Any = engine.create_context()
    context.append([1, 2])
    context.memory = Remembered()
    context.release()
    assert (context.tokens, context.memory, [*engine.contexts]) == ([], None, [])


def test_an_engine_begins_with_nothing_parked() -> None:
    parking = Engine(NullDriver()).parking
    assert (parking.used, parking.swapped, parking.dropped) == (0, 0, 0)


def test_a_priority_doubles_the_share() -> None:
    assert [priority_weight(priority + 1) / priority_weight(priority) for priority in (-1, 0, 1)] == [2.0] * 3


def test_a_fork_computes_with_the_same_adapter() -> None:
    context = Engine(NullDriver()).create_context("t")
    context.use_adapter("x")
    fork = context.fork()
    assert (fork.adapter, fork.table.root) == ("x", ("t", "x"))


def test_each_job_gets_its_own_rows_and_states() -> None:
    job: Any = None
    table = PageTable(PagePool(1, 4))
    plan = [Planned(job, Work([1], rows, hidden=states), table) for rows, states in ((1, 1), (0, 2), (2, 0), (1, 1))]
    logits, hidden = (np.arange(4, dtype=np.float32)[:, None] for _ in range(2))
    shares = [*split_result(plan, StepResult(Outputs(logits, hidden)))]
    assert [share.logits[:, 0].tolist() for share in shares] == [[0], [], [1, 2], [3]]
    states = [None if share.hidden is None else share.hidden[:, 0].tolist() for share in shares]
    assert states == [[0], [1, 2], None, [3]]


def test_whether_a_sampled_draft_fits_does_not_depend_on_what_was_drawn() -> None:
    drawn = Draft([2, 3], [-1, 0], ["draft_model"] * 2, [1.0, 1.0], np.ones((2, 4), np.float32))
    assert _unused_rows(drawn) == MAX_DRAFT - 2
    assert _unused_rows(replace(drawn, probabilities=None)) == 0
