"""A source of drafts from docs/extending, beside the others in a real session: it drafts, and the text stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.session.generation import sources
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.testing.direct import DirectSession, Generated
from inferd_runtime.testing.served import null_model

DASHES = p.Sampling(bias_tokens=(45,), bias_values=(100.0,))
FREE = p.Sampling(1.0, seed=5)


def generate(sampling: p.Sampling, **fields: Any) -> Generated:
    caller = DirectSession(null_model())
    done = caller.generate(caller.text("a rule: "), max_tokens=48, sampling=sampling, **fields)
    caller.close()
    return done


@pytest.fixture
def added(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every generation that drafts ask the page's drafter, too."""
    open_drafters = sources.open_drafters

    def with_runs(wanted: Any, *others: Any) -> Iterator[Drafter]:
        if wanted.names:
            yield page["RunDrafter"]()
        yield from open_drafters(wanted, *others)

    monkeypatch.setattr(sources, "open_drafters", with_runs)


@pytest.mark.usefixtures("added")
def test_a_run_of_one_token_takes_fewer_steps() -> None:
    plain, drafted = generate(DASHES), generate(DASHES, system_speculation=True)
    assert drafted.tokens == plain.tokens == [45] * 48
    counts = [count for step in drafted.steps for count in step.sources if count.source == "run"]
    assert sum(count.accepted for count in counts) > 0
    assert len(drafted.steps) < len(plain.steps)


@pytest.mark.usefixtures("added")
def test_a_seed_brings_the_same_text() -> None:
    assert generate(FREE, system_speculation=True).tokens == generate(FREE).tokens


def test_what_is_certain_but_not_committed_counts(page: dict[str, Any]) -> None:
    drafter = page["RunDrafter"](least=3)
    drafter.begin([1, 2, 2])
    assert not drafter.propose(5).tokens
    assert list(drafter.propose(2, ahead=[2]).tokens) == [2, 2]
    assert not drafter.propose(5, ahead=[2, 3]).tokens
    assert not drafter.propose(5).tokens
