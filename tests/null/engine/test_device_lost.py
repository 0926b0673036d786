"""A device that does nothing any more ends the process, not one job after the other."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.protocol import InternalError
from inferd_runtime.engine.driver import DeviceLost
from inferd_runtime.engine.engine import Engine, EngineOptions

from .overlap_cases import MODEL, Watched, make_request, start


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", [DeviceLost, RuntimeError])
def test_a_lost_device_passes_through_the_step_loop(
    monkeypatch: pytest.MonkeyPatch, overlap: bool, kind: type[Exception]
) -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(overlap=overlap))
    running = start(engine, make_request(driver, [1], 0))

    def illegal(*arguments: Any) -> None:
        raise kind("an illegal memory access was encountered")

    for name in ("launch", "forward"):
        monkeypatch.setattr(driver, name, illegal)
    if kind is DeviceLost:
        with pytest.raises(DeviceLost, match="illegal memory access"):
            engine.step()
        assert running.generation.error is None
    else:
        engine.step()
        assert isinstance(running.generation.error, InternalError)
