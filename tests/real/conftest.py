"""The model that these tests are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def session() -> Iterator[DirectSession]:
    if ModelStore().find(MODEL) is None:
        pytest.skip(f"{MODEL} is not here: inferd pull {MODEL}")
    direct = DirectSession(serve_model(EngineSettings(model=(ModelOptions(MODEL),), threads=1)))
    yield direct
    direct.close()
