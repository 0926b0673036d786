"""Steps of a fixed width: in bfloat16, too, drafts change no bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from drafted_bits import TEXTS, check_drafts

from inferd import protocol as p
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession


@pytest.fixture(scope="module")
def session() -> Iterator[DirectSession]:
    session = DirectSession(serve_model(EngineSettings(dtype="bfloat16", threads=1, fixed_rows=8)))
    yield session
    session.close()


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_fixed_width_a_draft_changes_no_bit_of_bfloat16(
    session: DirectSession, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_drafts(session, text, p.Sampling(temperature=0.7, seed=3), monkeypatch) > 20
