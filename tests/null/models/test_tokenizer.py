"""What a tokenizer's library does with texts that its expressions cannot match in time."""

from __future__ import annotations

import json
import time
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


def merging_json() -> str:
    """A tokenizer that joins what is between two tokens in many steps. It splits no text: each is one word."""
    spec = json.loads(BYTES.source)
    runs = ["a" * (1 << power) for power in range(8)]
    spec["model"]["vocab"] |= {run: BYTES.vocab_size + at for at, run in enumerate(runs[1:])}
    spec["model"]["merges"] = [[run, run] for run in runs[:-1]]
    return json.dumps(spec)


@pytest.mark.parametrize("encode", ["encode", "encode_parts"])
def test_a_text_takes_as_long_whether_or_not_another_tenant_has_used_its_words(encode: str) -> None:
    tokenizer = HubTokenizer(merging_json(), [0], "", {})
    assert len(getattr(tokenizer, encode)("a" * 128)) == 1

    def took(texts: Sequence[str]) -> float:
        started = time.process_time()
        for text in texts:
            getattr(tokenizer, encode)(text)
        return time.process_time() - started

    first, again = [], []
    for turn in range(10):
        texts = [f"{turn}x{at}" + "a" * 240 for at in range(200)]
        first.append(took(texts))
        again.append(min(took(texts) for _ in range(3)))
    assert min(again) > 0.6 * min(first)
