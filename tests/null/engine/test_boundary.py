"""What an exception inside one job is reported as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferd.protocol import ConstraintError, InferdError, InternalError, InvalidRequest
from inferd_grammar import GrammarFailure
from inferd_grammar.errors import DeadEnd
from inferd_runtime.engine.jobs.boundary import JobBoundary, typed_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("odd"), InvalidRequest),
        (DeadEnd("no token continues the text"), ConstraintError),
        (GrammarFailure("llguidance: parser error: Too many items (limit 50000; mask)"), ConstraintError),
        (GrammarFailure("llguidance did not roll back 2 tokens"), InternalError),
        (ValueError("odd"), InternalError),
    ],
)
def test_what_a_constraint_is_too_much_for_is_no_bug(error: Exception, kind: type[InferdError]) -> None:
    assert type(typed_error(error)) is kind


@pytest.mark.parametrize(("adapter", "kind"), [("", InternalError), ("ann/large", InvalidRequest)])
def test_numbers_that_overflow_are_the_fault_of_an_adapter_where_there_is_one(
    adapter: str, kind: type[InferdError]
) -> None:
    failed: list[InferdError] = []
    job: Any = SimpleNamespace(context=SimpleNamespace(adapter=adapter), fail=failed.append)
    with JobBoundary(job):
        raise FloatingPointError("the logits are no finite numbers")
    assert [type(error) for error in failed] == [kind]
