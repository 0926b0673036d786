"""Do drafts change a bit? The logits of a text's positions, computed alone and in steps that verify drafts."""

from __future__ import annotations

import numpy as np
import pytest

from inferd import protocol as p
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.testing.direct import DirectSession

TEXTS = (
    "the ferry left the port at noon, the ferry came back",
    "def total(values): return total",
    "one, two, one, two, one",
)
WRONG_GUESSES = (4, 5, 9, 15, 23, 40)
"""Places in the draft: runs of right guesses of every length, a wrong one behind each."""


def check_drafts(
    session: DirectSession, text: str, sampling: p.Sampling, monkeypatch: pytest.MonkeyPatch, count: int = 48
) -> int:
    """Return how many drafted tokens were accepted.

    Each position's logits are compared, not only the tokens, which would rarely differ in so few texts.
    """
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
            session.text(text), max_tokens=count, predicted=guess if drafts else [], sampling=sampling
        )
        found.append((made, dict(seen)))
        guess = [token ^ 1 if at in WRONG_GUESSES else token for at, token in enumerate(made.tokens)]
    (plain, alone), (drafted, beside) = found
    assert plain.tokens == drafted.tokens
    start = min(alone)
    for position in range(start, start + len(plain.tokens)):
        # Behind the text, rows of rejected drafts may have been computed last.
        assert (alone[position] == beside[position]).all(), position
    return drafted.accepted
