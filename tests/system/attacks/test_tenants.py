"""Every route that names something, asked for what another tenant has: the answer is that of what never was."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx

from .arena import Arena, Hostile, checked
from .attack import waiting_run

BODIES: dict[str, Any] = {
    "/messages": {"message": 1},
    "/files": {"name": "x", "size": 1},
    "/files/{number}": {"offset": 0, "data": ""},
}
"""What a route needs to look at its name at all, by the end of its path."""
PUBLIC = {"/livez", "/version"}


def operations(arena: Arena) -> list[tuple[str, str]]:
    """Every method and path of the server's own document."""
    paths = checked(arena.operator.http.get("/openapi.json"))["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def asked(client: Hostile, method: str, path: str, name: str) -> tuple[int, str]:
    """What a tenant is answered about a name, which is left out of the answer."""
    body = next((body for end, body in BODIES.items() if path.endswith(end)), None)
    url = re.sub(r"{(?!number)\w+}", quote(name, safe=""), path).replace("{number}", "1")
    response = client.http.request(method, url, json=body if method == "POST" else None)
    return response.status_code, re.sub(r"req-\w+", "", response.text.replace(name, "NAME"))


def test_no_route_tells_whether_another_tenant_has_what_it_names(arena: Arena) -> None:
    program = checked(arena.mallory.upload("async def main():\n    return 'secret'", "hidden"))
    run = waiting_run(arena.mallory)
    said = {"model": "tiny", "input": "secret", "max_output_tokens": 16}
    response = str(checked(arena.mallory.http.post("/v1/responses", json=said))["id"])
    names = {
        "reference": [(program["id"], "sha256:" + "0" * 64), ("hidden", "absent"), (f"hidden@{program['version']}", "a@1")],
        "run": [(run, run[:-6] + "000000")],
        "response": [(response, response[:-6] + "000000")],
        "model": [("hidden", "absent")],
    }  # fmt: skip
    looked = 0
    for method, path in operations(arena):
        for real, absent in names.get(next(iter(re.findall(r"{(\w+)}", path)), ""), []):
            answers = [asked(arena.hostile["trudy"], method, path, name) for name in (real, absent)]
            assert answers[0] == answers[1], (method, path)
            assert answers[0][0] == 404, (method, path)
            looked += 1
    assert looked >= 16
    assert arena.mallory.http.get(f"/v1/runs/{run}").status_code == 200
    arena.mallory.cancel(run)


def test_no_route_but_the_public_ones_answers_without_a_token(arena: Arena) -> None:
    for method, path in operations(arena):
        status = httpx.request(method, arena.url + re.sub(r"{\w+}", "x", path)).status_code
        assert status == (200 if path in PUBLIC else 401), (method, path)
