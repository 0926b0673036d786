"""Small parts of the engine on their own: what counts as plain, what an error names, what is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from inferd.protocol import MAX_DRAFT, Cancelled, InvalidRequest, Sampling
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec, filtered_sources
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.overlap import brings_tokens
from inferd_runtime.engine.sampling.device_sampling import sampling_inputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import priority_weight
from inferd_runtime.engine.scheduling.scheduler import _unused_rows
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.engine.verification import JobOutcome, commit_step, split_result
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Outputs, Placement
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.speculation.drafts import Draft
from inferd_runtime.testing.null_driver import NullDriver

GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)
PLAIN = Work([1], 1, sampler=GREEDY)
MORE: dict[str, Any] = {
    "rows": 2, "sampler": None, "hidden": 1, "scored": True,
    "placement": Placement(np.arange(1), np.ones((1, 1), np.bool_)),
}  # fmt: skip


def test_a_row_that_the_device_samples_brings_its_token() -> None:
    assert brings_tokens(PLAIN)
    assert brings_tokens(PLAIN._replace(tokens=[1, 2, 3]))
    assert brings_tokens(PLAIN._replace(masks=np.zeros((1, 1), np.int32), adjustments=[]))


def test_a_chain_is_gone_on_behind_unless_it_was_sampled() -> None:
    draft = Draft([2, 3], [-1, 0], ["a"] * 2, [0.95, 0.1])
    drafted = PLAIN._replace(tokens=[1, 2, 3], rows=3, draft=draft)
    assert brings_tokens(drafted)
    sampled = replace(draft, probabilities=np.full((2, 4), 0.25, np.float32))
    assert not brings_tokens(drafted._replace(draft=sampled))


@pytest.mark.parametrize("field", MORE)
def test_a_row_that_brings_more_or_is_read_on_the_host_does_not(field: str) -> None:
    assert not brings_tokens(PLAIN._replace(**{field: MORE[field]}))


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


@dataclass
class Forkable(Remembered):
    """What can go on in two contexts."""

    def fork(self) -> Forkable:
        return replace(self)


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
    assert (fork.adapter, fork.table.root) == ("x", ("t", "x", ""))


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


def test_a_sampler_without_rows_takes_nobodys_tokens() -> None:
    """The device numbers only jobs with sampled rows, as :func:`sampling_inputs` lists them."""
    job: Any = None
    table = PageTable(PagePool(1, 4))
    plan = [Planned(job, PLAIN._replace(rows=rows), table) for rows in (1, 0, 1)]
    sampled: Any = object()
    parts = split_result(plan, StepResult(Outputs(np.empty((0, 4), np.float32), None), sampled))
    assert [(part.sampled is sampled, part.number) for part in parts] == [(True, 0), (False, 0), (True, 1)]
    assert len(sampling_inputs(plan, 4).temperature) == 2


def test_what_a_grammar_rules_out_is_counted_for_those_who_guessed_it() -> None:
    draft = Draft([1, 2, 3], [-1, 0, 1], ["ngram", "program", "ngram"], [1.0] * 3)
    assert filtered_sources(draft, draft.likeliest(1)) == ["ngram", "program"]
    assert filtered_sources(draft, draft) == []


def test_a_whole_copy_remembers_what_the_sources_know() -> None:
    """And one that is cut before that knows nothing of it."""
    context: Any = Engine(NullDriver()).create_context()
    context.append([1, 2, 3])
    context.memory = Forkable(3)
    assert context.fork().memory == Forkable(3)
    assert context.fork(2).memory is None


def test_private_pages_that_begin_too_late_are_found() -> None:
    """K and V behind explicit positions do not follow from the tokens: their pages must not be found by these."""
    engine = Engine(NullDriver(page_size=4))
    context = engine.create_context()
    context.append([1, 2, 3, 4])
    context.place(2, [7, 8], [])
    engine.check_integrity()
    context.table.private_from = 3
    with pytest.raises(AssertionError, match="irregular from 2, private from 3"):
        engine.check_integrity()


def test_an_adapter_that_comes_back_stays_when_its_last_user_leaves() -> None:
    """It was dropped while a lease held it, and loaded again: the lease's end must not take it away."""
    adapters = AdapterSet(NullDriver())
    files = AdapterFiles(b'{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}', bytearray(b"weights"))
    adapters.load("t", "a", adapters.reader("t")(files))
    lease = adapters.lease("t", "a")
    adapters.drop("t", "a")
    again = adapters.load("t", "a", adapters.reader("t")(files))
    assert not again.dropped
    lease.release()
    assert [adapter.name for adapter in adapters.list("t")] == ["a"]
    adapters.lease("t", "a").release()
    assert not again.users


def test_an_outcome_for_a_job_that_has_ended_changes_nothing() -> None:
    """Another job's commit may end it: its table and tokens stay as they were left."""
    engine = Engine(NullDriver(vocab_size=16))
    context = engine.create_context()
    context.append([1, 2])
    job = Generation(context, GenerationSpec(GREEDY, 4, ()), TextAssembler(str, ()))
    engine.submit(job)
    engine.step()
    before = list(context.tokens)
    plan = engine.scheduler.plan()
    step = InFlightStep(plan, Outputs(np.zeros((1, 16), np.float32), None), 0.0)  # type: ignore[arg-type]
    job.fail(Cancelled("stopped"))
    commit_step(step, [JobOutcome(0, Verified(plan[0].work, [5]))], engine.driver)
    assert (context.tokens, context.table.length, len(job.outbox)) == (before, 2, 1)
