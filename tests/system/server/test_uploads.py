"""Hostile uploads and a broken disk against a gateway over real sockets: typed answers, and everybody else goes on."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import hostile_uploads
import httpx
from small_disk import small_disk

from .conftest import BOB, Serve

HELLO = "async def main() -> str:\n    return 'hello'\n"
COSTLY = (
    "dotted keys in a project",
    "a row of names",
    "nested f-strings",
    "script blocks that do not end",
    "240,000 lines",
)
REFUSED = {400, 413, 422, 429, 503}
"""The last where the machine is too busy for the parser to reach its limit of processor time."""


async def test_hostile_uploads_neither_stop_the_gateway_nor_a_neighbours_upload(serve: Serve) -> None:
    answers: list[httpx.Response] = []
    lags: list[float] = []
    async with serve() as served, httpx.AsyncClient(base_url=served.gateway.url) as other:

        async def attack(what: str) -> None:
            answers.append(await served.client.post("/v1/programs", content=hostile_uploads.HOSTILE[what], timeout=60))

        async def neighbour() -> None:
            headers = {"Authorization": f"Bearer {BOB}"}
            while len(answers) < len(COSTLY):
                source = f"{HELLO}#{len(lags) % 100}"  # below the quota of programs, however fast they go
                answer = await other.post(
                    "/v1/programs", json={"files": {"main.py": source}}, headers=headers, timeout=60
                )
                assert answer.status_code in (200, 201)
                began = time.monotonic()
                assert (await other.get("/livez")).status_code == 200
                lags.append(time.monotonic() - began)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(neighbour)
            for what in COSTLY:
                tasks.start_soon(attack, what)
    assert {answer.status_code for answer in answers} <= REFUSED
    for answer in answers:
        assert answer.json()["error"]["code"] in ("limit", "client.invalid", "program.syntax", "unavailable")
    assert sorted(lags)[len(lags) // 2] < 0.1
    assert max(lags) < 1  # this process is the client, too


async def test_programs_are_removed_over_http(serve: Serve) -> None:
    async with serve() as served:
        await served.upload(HELLO, "hello")
        assert (await served.client.delete("/v1/programs/hello")).json() == {"removed": 1}
        assert (await served.client.get("/v1/programs")).json() == {"programs": []}
        assert (await served.client.delete("/v1/programs/hello")).status_code == 404


async def test_a_full_disk_is_507_and_what_was_uploaded_still_runs(serve: Serve, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 500) as disk:
        async with serve(data_dir=disk) as served:
            kept = await served.upload(HELLO, "hello")
            (disk / "ballast").write_bytes(bytes(200_000))
            statuses = set()
            for number in range(30):
                source = f"{HELLO}#{number}" + "x" * 20_000
                statuses.add(
                    (await served.client.post("/v1/programs", json={"files": {"main.py": source}})).status_code
                )
            assert statuses <= {201, 503, 507}
            assert statuses & {503, 507}
            assert (await served.client.get("/livez")).status_code == 200
            run = await served.client.post("/v1/runs", json={"program": kept["id"]})
            assert (await served.finished(run.json()))["result"] == "hello"
            (disk / "ballast").unlink()
            assert (await served.upload(f"{HELLO}# later", "later"))["created"]
