"""What an exception inside one job is reported as."""

from __future__ import annotations

import pytest

from inferd.protocol import ConstraintError, InferdError, InternalError, InvalidRequest
from inferd_grammar import GrammarFailure
from inferd_grammar.errors import DeadEnd
from inferd_runtime.engine.jobs.boundary import typed_error


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
