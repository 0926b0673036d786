"""Served with weights in forms of their own, drafts change no bit: the embedded model, and the real one where it is pulled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from drafted_bits import TEXTS, check_drafts

from inferd import protocol as p
from inferd.protocol import InvalidRequest
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.kernels.native.blocks import ROUNDED, _product
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.server.engine_process import serving
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.session.generation.sources import SpeculationRequest
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.direct import DirectSession

REAL = "smollm2-135m"
HELD = (
    "tiny,dtype=bfloat16",
    "tiny,weights=half",
    "tiny,weights=int8",
    "tiny,weights=int4",
    "tiny,weights=int4,activations=int8",
)
REAL_HELD = ("dtype=float32", "dtype=bfloat16", "", "weights=half", "weights=int8", "weights=int4", "activations=int8")
SAMPLERS = (p.Sampling(), p.Sampling(temperature=0.8, seed=3), p.Sampling(temperature=1.2, top_p=0.9, seed=11))


def opened(text: str) -> DirectSession:
    return DirectSession(serve_model(EngineSettings(model=(ModelOptions.parse(text),), threads=1)))


@pytest.fixture(scope="module", params=HELD)
def session(request: pytest.FixtureRequest) -> Iterator[DirectSession]:
    session = opened(request.param)
    yield session
    session.close()


@pytest.fixture(scope="module", params=REAL_HELD)
def real(request: pytest.FixtureRequest) -> Iterator[DirectSession]:
    if ModelStore().find(REAL) is None:
        pytest.skip(f"{REAL} is not here: `inferd pull {REAL}` brings it")
    with pytest.MonkeyPatch.context() as patch:
        # What a step costs is of no interest here, and takes longer to measure than the tests.
        patch.setattr(serving, "step_costs", lambda model: (StepCost(), StepTimes.linear(1.0, 1e-3)))
        session = opened(",".join(filter(None, (REAL, request.param))))
    yield session
    session.close()


@pytest.mark.parametrize("sampling", SAMPLERS, ids=["greedy", "0.8", "1.2"])
def test_a_draft_changes_no_bit(session: DirectSession, sampling: p.Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(check_drafts(session, text, sampling, monkeypatch) for text in TEXTS) > 10


@pytest.mark.real
def test_a_draft_changes_no_bit_of_the_real_model(real: DirectSession, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = zip(TEXTS[:2], SAMPLERS[:2], strict=True)
    assert sum(check_drafts(real, text, sampling, monkeypatch, 32) for text, sampling in pairs) > 5


@pytest.mark.real
def test_rows_of_eight_bits_have_keys_and_values_of_their_own() -> None:
    if ModelStore().find(REAL) is None:
        pytest.skip(f"{REAL} is not here: `inferd pull {REAL}` brings it")
    model = serve_model(EngineSettings(model=(ModelOptions(REAL, activations="int8"),), threads=1))
    assert model.info.fingerprint.endswith("-rows8")


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["", "auto", "float32"])
def test_rows_are_rounded_for_weights_in_blocks_unless_float32_is_asked_for(dtype: str) -> None:
    if ModelStore().find(REAL) is None:
        pytest.skip(f"{REAL} is not here: `inferd pull {REAL}` brings it")
    model = serve_model(EngineSettings(model=(ModelOptions(REAL, dtype=dtype),), threads=1))
    rounds = dtype != "float32" and _product("blocks4", 16).__name__ == ROUNDED[16]
    assert model.info.fingerprint.endswith("-rows16") is rounds
    assert SpeculationRequest.of(p.StartGenerate(0, system_speculation=True), model).settings.tree is not rounds


@pytest.mark.parametrize(
    ("text", "trees"),
    [("tiny", True), ("tiny,weights=half", True), ("tiny,dtype=bfloat16", False), ("tiny,weights=int8", False)],
)
def test_trees_are_drafted_only_where_results_are_not_rounded(text: str, trees: bool) -> None:
    """A tree's keys are added up in another order than a chain's: in float32 that is far below what tells tokens apart."""
    model = serve_model(EngineSettings(model=(ModelOptions.parse(text),), threads=1))
    asked = SpeculationRequest.of(p.StartGenerate(0, system_speculation=True), model)
    assert asked.settings.tree is trees


def test_no_token_depends_on_the_company(session: DirectSession) -> None:
    """Alone, and in one batch with others whose drafts and lengths differ."""
    alone = [session.generate(session.text(text), max_tokens=24).tokens for text in TEXTS]
    together = session.together([session.text(text) for text in TEXTS], max_tokens=24)
    assert together == alone


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tiny,weights=half,dtype=bfloat16", "cannot be held as half here"),
        ("tiny,activations=int8", "model 'tiny': activations cannot be int8: no weight of it is in blocks of few bits"),
        ("tiny,activations=int8,weights=half", "activations can be int8 only on the CPU, before weights in blocks"),
        ("tiny,activations=int8,device=cuda", "activations can be int8 only on the CPU, before weights in blocks"),
        ("tiny,activations=int4", "activations 'int4' is not one of int8"),
    ],
)
def test_what_cannot_be_held_or_rounded_so_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        opened(text)


def test_a_model_without_a_fused_pass_is_refused() -> None:
    settings = EngineSettings(model=(ModelOptions("tiny", weights="int8"),), threads=1, plain=True)
    with pytest.raises(InvalidRequest, match="only on the fused pass"):
        serve_model(settings)
