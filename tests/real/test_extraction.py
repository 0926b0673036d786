"""Extractions on the pulled model end with valid JSON, also where their tokens hardly suffice. Skipped where it is not pulled."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from inferd import protocol as p
from inferd_runtime.testing.direct import DirectSession

pytestmark = pytest.mark.real
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "values": {"type": "array", "items": {"type": "number"}, "minItems": 1},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "severity": {"enum": ["low", "middle", "high"]},
    },
    "required": ["title", "values", "tags", "severity"],
    "additionalProperties": False,
}
TEXT = "Sensor A7 measured 21.5, 21.75 and 22.0 degrees. Severity is low. It is filed under heat, indoors and heat."


@pytest.mark.parametrize(("temperature", "budget"), [(0.0, 40), (0.8, 28)])
def test_a_record_is_whole_within_its_tokens_with_drafts_the_same(
    session: DirectSession, temperature: float, budget: int
) -> None:
    texts = set()
    for speculation in (False, True):
        context = session.chat("Extract the data as JSON.", TEXT)
        done = session.generate(
            context, max_tokens=budget, on_length="complete", system_speculation=speculation,
            constraint=p.ConstraintSpec("json_schema", json.dumps(RECORD)), sampling=p.Sampling(temperature, seed=5),
        )  # fmt: skip
        assert len(done.tokens) <= budget
        texts.add(done.text)
    assert len(texts) == 1
    jsonschema.Draft202012Validator(RECORD).validate(json.loads(texts.pop()))


def test_too_few_tokens_are_refused_before_the_first(session: DirectSession) -> None:
    context = session.chat("Extract the data as JSON.", TEXT)
    with pytest.raises(p.Truncated, match="max_tokens=5 is less than the"):
        session.generate(
            context, max_tokens=5, on_length="complete", constraint=p.ConstraintSpec("json_schema", json.dumps(RECORD))
        )
