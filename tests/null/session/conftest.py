"""A session over a model without weights, whose prompts take several steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferd_runtime.engine.engine import EngineOptions
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model


@pytest.fixture(scope="module")
def caller() -> Iterator[DirectSession]:
    """One for all tests of a file."""
    made = DirectSession(
        null_model(driver=NullDriver(vocab_size=VOCAB_SIZE, pages=2048), options=EngineOptions(token_budget=64))
    )
    yield made
    made.close()
