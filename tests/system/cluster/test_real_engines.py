"""Two replicas with the embedded model and real sandboxes: contexts in a shared store, and time by weight. No Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from inferd_runtime.cluster.messages import RUN_ID
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.settings.settings import EngineSettings

from .conftest import ANN, BOB, ROOT, Cluster, open_cluster, until

pytestmark = pytest.mark.anyio
SAVES = """
from inferd import Context
async def main():
    context = Context().system("A handbook of rules. " * 10)
    await (await context.flush()).save("handbook")
"""
OPENS = """
from inferd import Context, Sampler
async def main():
    context = await Context.open("handbook")
    text = await context.user("What?").generate(Sampler.argmax(), max_tokens=12).collect_text()
    return [text, context.recomputed]
"""
WORKS = """
import asyncio
from inferd import Context, Sampler
async def stream():
    while True:
        await Context().user("Tell me.").generate(Sampler.multinomial(), max_tokens=400).collect_text()
async def main():
    await asyncio.gather(*(stream() for _ in range(4)))
"""
SETTLE_SECONDS, MEASURED_SECONDS = 1.0, 7.0


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("real")
    ensure_runner()
    engine = EngineSettings(threads=1)
    async with open_cluster(folder, real=True, engine=engine, context_store=f"file://{folder}/contexts") as cluster:
        yield cluster


async def _run(cluster: Cluster, token: str, program: str, session: str) -> str:
    headers = {"Authorization": f"Bearer {token}", "x-session-id": session}
    answer = await cluster.client.post("/v1/runs", json={"program": program}, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _upload(cluster: Cluster, token: str, **sources: str) -> None:
    for name, source in sources.items():
        body = {"files": {"main.py": source}, "name": name}
        answer = await cluster.client.post("/v1/programs", json=body, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 201, answer.text


def _replica(run: str) -> str:
    named = RUN_ID.fullmatch(run)
    assert named is not None
    return named[1]


async def test_a_context_that_one_replica_saved_opens_on_the_other(real: Cluster) -> None:
    await _upload(real, ANN, saves=SAVES, opens=OPENS)
    saved = await _run(real, ANN, "saves", "one")
    assert (await real.finished(saved))["error"] is None
    # A new session goes to the replica that has waited longer, the first one's to its own.
    elsewhere, here = await _run(real, ANN, "opens", "two"), await _run(real, ANN, "opens", "one")
    assert _replica(saved) == _replica(here) != _replica(elsewhere)
    results = [(await real.finished(run))["result"] for run in (elsewhere, here)]
    assert results[0] == results[1]
    assert results[0][1] == 0, "the other replica has the same weights, so nothing is computed again"


async def _served(cluster: Cluster) -> dict[str, float]:
    answer = await cluster.client.get("/v1/tenants", headers={"Authorization": f"Bearer {ROOT}"})
    tenants: list[dict[str, Any]] = answer.json()["tenants"]
    return {one["tenant"]: one["use"]["served_s"] for one in tenants}


async def _all_work(cluster: Cluster, runs: list[tuple[str, str]]) -> bool:
    states = [
        (await cluster.client.get(f"/v1/runs/{run}", headers={"Authorization": f"Bearer {token}"})).json()["state"]
        for token, run in runs
    ]
    return set(states) == {"running"} and (await _served(cluster)).get("bob", 0.0) > 0


async def test_tenants_get_the_clusters_time_by_weight_wherever_they_work(real: Cluster) -> None:
    """Ann, with twice bob's weight, works on both replicas and bob on one: alone, that one would give him a third of its time."""
    await _upload(real, ANN, one=WORKS, two=WORKS + "# two")
    await _upload(real, BOB, one=WORKS)
    runs = [(ANN, await _run(real, ANN, name, name)) for name in ("one", "two")]
    assert len({_replica(run) for _, run in runs}) == 2
    runs.append((BOB, await _run(real, BOB, "one", "bob")))
    await until(lambda: _all_work(real, runs))  # a tenant's first run waits for a worker of its own to start
    await anyio.sleep(SETTLE_SECONDS)
    before = await _served(real)
    await anyio.sleep(MEASURED_SECONDS)
    after = await _served(real)
    for token, run in runs:
        await real.client.post(f"/v1/runs/{run}/cancel", headers={"Authorization": f"Bearer {token}"})
    ann, bob = (after[name] - before[name] for name in ("ann", "bob"))
    assert ann + bob > 0.5 * 2 * MEASURED_SECONDS, "both engines were at work"
    print(f"ann {ann:.2f} s, bob {bob:.2f} s, ratio {ann / bob:.3f}")
    assert ann / bob == pytest.approx(2, rel=0.1)
