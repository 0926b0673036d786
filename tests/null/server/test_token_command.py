"""``inferd token`` and ``inferd tenants``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.cli import client
from inferd_runtime.cli.tenants import tenants
from inferd_runtime.cli.token import read_span, token
from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.tenancy.token_store import TOKENS_FILE, TokenStore


def printed(capsys: pytest.CaptureFixture[str], data: Path, *arguments: str) -> dict[str, object]:
    assert token([*arguments, "--json", "--data-dir", str(data)]) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def test_a_token_is_shown_once_rotated_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = printed(capsys, tmp_path, "create", "ann", "--role", "admin", "--expires-in", "30d", "--note", "n")
    text, token_id = str(made["token"]), str(made["id"])
    store = TokenStore(tmp_path / TOKENS_FILE)
    tokens = AccessTokens({}, store)
    assert tokens.rights_of(f"Bearer {text}").tenant == "ann"
    listed = printed(capsys, tmp_path, "list")
    assert text not in json.dumps(listed)
    assert token_id in json.dumps(listed)
    rotated = printed(capsys, tmp_path, "rotate", token_id)
    assert tokens.rights_of(f"Bearer {rotated['token']}").role == "admin"
    printed(capsys, tmp_path, "revoke", str(rotated["id"]))
    assert token(["list", "--data-dir", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "revoked" in table
    assert "expired" in table
    store.close()


def test_a_name_that_was_somebodys_is_not_given_to_another_one_unawares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(*arguments: str) -> bool:
        assert token([*arguments, "--json", "--data-dir", str(tmp_path)]) == 0
        told = capsys.readouterr()
        ids.append(json.loads(told.out).get("id", ""))
        return "had tokens before" in told.err

    ids: list[str] = []
    assert not warned("create", "ann")
    assert not warned("create", "ann"), "she has one"
    assert not warned("revoke", ids[0])
    assert not warned("revoke", ids[1])
    assert warned("create", "ann")
    assert not warned("create", "bob")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["create", "../ann"], InvalidRequest), (["create", "ann", "--expires-in", "1y"], InvalidRequest),
        (["create", "ann", "--role", "king"], InvalidRequest), (["rotate", "tok-x"], NotFound),
        (["revoke", "tok-x"], NotFound), ([], InvalidRequest), (["steal"], InvalidRequest),
    ],
)  # fmt: skip
def test_a_wrong_command_is_refused(tmp_path: Path, arguments: list[str], error: type[Exception]) -> None:
    options = ["--data-dir", str(tmp_path)] if arguments and arguments[0] != "steal" else []
    with pytest.raises(error):
        token([*arguments, *options])


def test_a_time_has_a_unit() -> None:
    assert [read_span(text) for text in ("90s", "15m", "12h", "30d")] == [90, 900, 43200, 2592000]


def test_tenants_are_a_table_of_use_and_quota(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quotas = {
        "runs": 5,
        "waiting": 2,
        "sockets": 3,
        "connections": 4,
        "launches_per_minute": 60,
        "tokens_per_minute": 0,
    }
    use = {"runs": 1, "waiting": 0, "sockets": 0, "connections": 1, "launches_per_minute": 7.0}
    answer = {"tenants": [{"tenant": "ann", "quotas": quotas, "use": use}]}
    monkeypatch.setattr(client.Server, "get", lambda server, path: answer)
    assert tenants(["--url", "http://x"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "TENANT RUNS WAITING SOCKETS CONNECTIONS LAUNCHES PER MINUTE TOKENS PER MINUTE"
    assert row.split() == ["ann", "1/5", "0/2", "0/3", "1/4", "7/60", "-/no", "limit"]


def test_a_tenant_of_any_name_is_stopped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def post(server: client.Server, path: str, body: object = None) -> dict[str, object]:
        asked.append(path)
        return {"tenant": "a/ä", "runs": 2, "responses": 1}

    monkeypatch.setattr(client.Server, "post", post)
    assert tenants(["--url", "http://x", "--stop", "a/ä"]) == 0
    assert asked == ["/v1/tenants/a%2F%C3%A4/stop"]
    assert capsys.readouterr().out == "a/ä: 2 runs and 1 responses in the background were asked to end\n"
