"""Tokens: who may talk to the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from inferd.protocol import InvalidRequest, Unauthorized
from inferd_runtime.engine.scheduling.tenants import TenantLimits
from inferd_runtime.server.gateway.auth import OWN, TENANT_KEY, AccessTokens, BearerAuth, kept_token, load_tokens
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights
from inferd_runtime.server.tokens_file import load_tenancy, read_token_lines
from inferd_runtime.settings.settings import Settings


def test_a_token_means_its_tenant() -> None:
    tokens = AccessTokens({"a" * 20: TokenRights("ann"), "b" * 20: TokenRights("bob", Role.ADMIN)})
    assert tokens.rights_of(f"Bearer {'a' * 20}") == TokenRights("ann", Role.USER)
    assert tokens.rights_of(f"bearer {'b' * 20}") == TokenRights("bob", Role.ADMIN)
    assert tokens.tenants == {"ann": Role.USER, "bob": Role.ADMIN}


def test_an_admin_has_an_admins_quotas_from_the_first_request_on() -> None:
    tokens = AccessTokens({"b" * 20: TokenRights("bob", Role.ADMIN)})
    assert tokens.role_of("bob") is Role.ADMIN
    assert tokens.role_of("ann") is Role.USER


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", "Basic aaa", "Bearer aaaa", "Bearer aa", "Bearer a", "Bearer aa?", "aaa", "Bearer é",
    ],
)  # fmt: skip
def test_anything_else_is_unauthorized(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        AccessTokens({"aaa": TokenRights("ann")}).rights_of(header)


def test_an_empty_token_is_nobodys() -> None:
    with pytest.raises(Unauthorized, match="send the header"):
        AccessTokens({"": TokenRights("ann")}).rights_of("Bearer ")


async def seen_by_the_app(kind: str, path: str, *headers: tuple[bytes, bytes]) -> tuple[list[Scope], list[Message]]:
    """The scopes that pass the middleware, and what it sends itself."""
    passed: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    async def receive() -> Message:
        return {"type": f"{kind}.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "headers": list(headers), "method": "GET", "query_string": b""}
    scope["extensions"] = {"websocket.http.response": {}}
    if kind == "lifespan":
        scope = {"type": kind}
    await BearerAuth(app, AccessTokens({"aaa": TokenRights("ann")}))(scope, receive, send)
    return passed, sent


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_requests_with_a_token_reach_the_app(kind: str) -> None:
    passed, sent = asyncio.run(seen_by_the_app(kind, "/v1/models"))
    assert not passed
    assert sent
    passed, sent = asyncio.run(seen_by_the_app(kind, "/v1/models", (b"authorization", b"Bearer aaa")))
    assert [scope[TENANT_KEY] for scope in passed] == ["ann"]
    assert not sent


@pytest.mark.parametrize(("kind", "path"), [("http", "/livez"), ("http", "/version"), ("lifespan", "")])
def test_what_is_public_needs_no_token(kind: str, path: str) -> None:
    passed, sent = asyncio.run(seen_by_the_app(kind, path))
    assert [TENANT_KEY in scope for scope in passed] == [False]
    assert not sent


def test_a_token_is_generated_once_and_is_private(tmp_path: Path) -> None:
    state = tmp_path / "home" / "state"
    token = kept_token(state)
    assert len(token) == len("inferd_") + 43, "32 random bytes in base64"
    assert kept_token(state) == token
    assert (state / "token").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert load_tokens(Settings(state_dir=state)).rights_of(f"Bearer {token}") == OWN


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch(0o600)
    with pytest.raises(InvalidRequest, match="is empty"):
        kept_token(tmp_path)


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


STRONG = ["abcdefgh01234567", "ABCDEFGH01234567", "xyzXYZ0123456789"]


def test_named_tokens_make_no_generated_one(tmp_path: Path) -> None:
    one, two, mine = STRONG
    file = private(tmp_path / "tokens", f"{one} ann\n# note\n\n {two}   bob role=admin\n")
    tokens = load_tokens(Settings(token=mine, tokens_file=file, state_dir=tmp_path / "state"))
    assert tokens.rights_of(f"Bearer {one}") == TokenRights("ann", Role.USER, "file-1")
    assert tokens.rights_of(f"Bearer {two}") == TokenRights("bob", Role.ADMIN, "file-2")
    assert tokens.rights_of(f"Bearer {mine}") == OWN
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("weak", ["x", "short", "aaaaaaaaaaaaaaaaaaaaaaaa", "123412341234123412341234"])
def test_a_token_that_is_easy_to_guess_is_refused_and_not_repeated(tmp_path: Path, weak: str) -> None:
    state = tmp_path / "state"
    file = private(tmp_path / "tokens", f"{weak} ann\n")
    kept = Settings(state_dir=tmp_path / "kept")
    kept.state_dir.mkdir()
    private(kept.state_dir / "token", weak)
    for settings in (Settings(token=weak, state_dir=state), Settings(tokens_file=file, state_dir=state), kept):
        with pytest.raises(InvalidRequest, match="easy to guess") as caught:
            load_tokens(settings)
        assert f" {weak} " not in caught.value.message


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_secrets_that_others_can_read_or_change_are_refused(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "tokens", f"{STRONG[0]} ann\n")
    kept = private(tmp_path / "token", STRONG[0])
    for path in (file, kept):
        path.chmod(mode)
    for settings in (Settings(tokens_file=file), Settings(state_dir=tmp_path)):
        with pytest.raises(InvalidRequest, match="chmod 600"):
            load_tokens(settings)


@pytest.mark.parametrize("text", ["one", "one two three", "one ann\none bob", "one bad/tenant"])
def test_a_bad_tokens_file_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    file = private(tmp_path / "tokens", text)
    with pytest.raises(InvalidRequest, match=r"tokens, line \d"):
        read_token_lines(file)


def test_a_tokens_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_token_lines(tmp_path / "nix")


def test_a_tenants_line_may_say_its_quota_and_its_weight(tmp_path: Path) -> None:
    file = private(tmp_path / "tokens", "one ann kv_pages=64 weight=2.5\ntwo bob weight=0.5\nthree cy\nfour ann\n")
    tenancy = load_tenancy(Settings(tokens_file=file, tenant_pages=10, state_dir=tmp_path))
    assert tenancy.limits("ann") == TenantLimits(64, 2.5)
    assert tenancy.limits("bob") == TenantLimits(10, 0.5)
    assert tenancy.limits("cy") == tenancy.limits("nobody") == TenantLimits(10, 1.0)
    assert load_tenancy(Settings(state_dir=tmp_path)).limits("ann") == TenantLimits()


@pytest.mark.parametrize("option", ["kv_pages=-1", "kv_pages=1.5", "weight=0", "weight=nan", "pages=3", "x"])
def test_a_tenants_wrong_option_is_refused_with_its_line(tmp_path: Path, option: str) -> None:
    file = private(tmp_path / "tokens", f"# comment\none ann {option}\n")
    with pytest.raises(InvalidRequest, match=r"line 2: quota: .*role=admin"):
        read_token_lines(file)
