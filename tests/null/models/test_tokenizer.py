"""What a tokenizer's library does with texts that its expressions cannot match in time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from inferd import InvalidRequest
from inferd_grammar import TokenTable
from inferd_runtime.models.tokenizer import HubTokenizer
from inferd_runtime.server.engine_process.vocabularies import vocabulary_of

BYTES = TokenTable.of_bytes()
SLOW = "(?:a|a|aa)+$"
TEXT = "a" * 40 + "b"


def slow_json() -> str:
    """A tokenizer whose expression takes longer for each further "a", until its library gives up with a panic."""
    spec = json.loads(BYTES.source)
    split = {"type": "Split", "pattern": {"Regex": SLOW}, "behavior": "Isolated", "invert": False}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spec["pre_tokenizer"]]}
    return json.dumps(spec)


def of_a_model(text: str) -> Sequence[int]:
    return HubTokenizer(slow_json(), [0], "", {}).encode(text)


def between_control_tokens(text: str) -> Sequence[int]:
    return HubTokenizer(slow_json(), [0], "", {}).encode_parts(text)


def of_a_draft_engine(text: str) -> Sequence[int]:
    table = TokenTable.from_tokenizer_json(slow_json(), vocab_size=BYTES.vocab_size, eos_ids=[0])
    return vocabulary_of(table).encode(text)


@pytest.mark.parametrize("encode", [of_a_model, between_control_tokens, of_a_draft_engine])
def test_a_text_that_a_tokenizer_gives_up_on_ends_its_request_and_not_the_engine(
    encode: Callable[[str], Sequence[int]],
) -> None:
    assert len(encode("aab")) == 3
    with pytest.raises(InvalidRequest, match="gives up"):
        encode(TEXT)
