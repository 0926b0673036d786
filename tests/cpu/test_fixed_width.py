"""Steps of a fixed width: in bfloat16, too, drafts change no bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from inferd import protocol as p
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

TEXTS = (
    "the ferry left the port at noon, the ferry came back",
    "def total(values): return total",
    "one, two, one, two, one",
)


@pytest.fixture(scope="module")
def session() -> Iterator[DirectSession]:
    session = DirectSession(serve_model(EngineSettings(dtype="bfloat16", threads=1, fixed_rows=8)))
    yield session
    session.close()


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_fixed_width_a_draft_changes_no_bit_of_bfloat16(
    session: DirectSession, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each position's logits are compared, not only the tokens, which would rarely differ in so few texts."""
    driver, seen = session.engine.driver, dict[int, np.ndarray]()
    forward = driver.forward

    def recorded(batch: Batch) -> Outputs:
        outputs = forward(batch)
        seen.update(zip(batch.positions[batch.logit_rows].tolist(), outputs.logits, strict=True))
        return outputs

    monkeypatch.setattr(driver, "forward", recorded)
    found, guess = [], list[int]()
    for drafts in (False, True):
        seen.clear()
        made = session.generate(
            session.text(text), max_tokens=48, predicted=guess if drafts else [],
            sampling=p.Sampling(temperature=0.7, seed=3),
        )  # fmt: skip
        found.append((made, dict(seen)))
        guess = [token if at % 6 else token ^ 1 for at, token in enumerate(made.tokens, 1)]
    (plain, alone), (drafted, beside) = found
    assert plain.tokens == drafted.tokens
    assert drafted.accepted > 20
    start = min(alone)
    for position in range(start, start + len(plain.tokens)):
        # Behind the text, rows of rejected drafts may have been computed last.
        assert (alone[position] == beside[position]).all(), position
