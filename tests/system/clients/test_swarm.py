"""The shipped swarm on a real server: one launch, several programs, one text."""

from __future__ import annotations

from .conftest import ROOT, LiveServer


def test_a_swarm_writes_a_story_together(server: LiveServer) -> None:
    server.upload((ROOT / "inferlets" / "swarm" / "main.py").read_text(), "swarm")
    with server.http() as client:
        asked = {"program": "swarm", "arguments": {"about": "a boat", "writers": 3, "max_tokens": 8}}
        run = client.post("/v1/runs", json=asked).json()["id"]
        client.get(f"/v1/runs/{run}/events")
        ended = client.get(f"/v1/runs/{run}").json()
        runs = client.get("/v1/runs").json()["runs"]
    assert ended["error"] is None, ended["error"]
    assert list(ended["result"]["text"]) == ["beginning", "middle", "end"]
    assert all(ended["result"]["text"].values())
    assert sum(ended["result"]["written"]) == 3
    children = [one for one in runs if one["parent"] == run]
    assert [one["state"] for one in children] == ["succeeded"] * 3
    assert sum(one["usage"]["tokens"] for one in children) > 0
