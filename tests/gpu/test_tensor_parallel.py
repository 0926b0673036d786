"""A model over two devices: the kernels and recorded steps of one, with sums over the ranks in them, and its tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inferd.protocol import Sampling
from inferd_runtime.engine.drivers.parallel_steps import LeadingSampler
from inferd_runtime.models.parallel import leave
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.settings.settings import EngineSettings

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
SETTINGS = EngineSettings(device="cuda", dtype="float32", pages=400, threads=1)
TEXT = "The captain noted a light wind. The second engine was stopped for a while. The"


def texts(served: ServedModel) -> list[list[int]]:
    """Greedy and sampled ones, with drafts from their own text and without."""
    from inferd_runtime.testing.direct import (
        DirectSession,
    )  # needs packages that a machine with one device does without

    session = DirectSession(served)
    found = [
        session.generate(session.text(TEXT), sampling=sampling, max_tokens=48, system_speculation=drafted).tokens
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=2))
        for drafted in (False, True)
    ]
    session.close()
    return found


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_two_devices_bring_the_tokens_of_one(graphs: str) -> None:
    # Likewise.
    from inferd_runtime.server.engine_process.serving import serve_model, serve_models

    settings = replace(SETTINGS, graphs=graphs)
    expected = texts(serve_model(settings))
    followers = Followers(2)
    try:
        (served,) = serve_models(replace(settings, tensor_parallel=2), followers=followers)
        assert isinstance(served.engine.driver, LeadingSampler), (
            "the kernels were replaced by the reference: see the log"
        )
        assert texts(served) == expected
    finally:
        followers.close()
        leave()
