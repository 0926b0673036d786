from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from inferd import Forbidden, InvalidRequest, NotFound, Unavailable
from inferd_runtime.cli.secret import secret as secret_command
from inferd_runtime.cli.warm import _warm_settings
from inferd_runtime.server.egress.origins import read_address
from inferd_runtime.server.services.outside import LazySecrets
from inferd_runtime.server.tenancy.secret_store import SecretStore
from inferd_runtime.settings.settings import SECRETS_FILE, Settings

TEXT = "Bearer ghp_0123456789abcdef"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], SecretStore]]:
    with ExitStack() as stores:
        yield lambda: stores.enter_context(closing(SecretStore(tmp_path / SECRETS_FILE)))


def test_a_secret_is_found_by_its_tenant_and_bound_to_its_origins(opened: Callable[[], SecretStore]) -> None:
    store = opened()
    store.set("github", "ann", TEXT, ["api.github.com"])
    store.set("github", "*", TEXT + "x", ["http://10.0.0.1:8080"])
    assert store.find("github", "ann").value == TEXT
    assert store.find("github", "bob").value == TEXT + "x"
    found = store.find("github", "ann")
    found.check(read_address("https://api.github.com/x").origin)
    for url in (
        "http://api.github.com/",
        "https://api.github.com:8443/",
        "https://evil.example/",
        "http://10.0.0.1:8080",
    ):
        with pytest.raises(Forbidden):
            found.check(read_address(url).origin)
    with pytest.raises(NotFound):
        store.find("gitlab", "ann")
    assert TEXT not in repr(found)


def test_a_change_by_another_process_counts_at_once(tmp_path: Path, opened: Callable[[], SecretStore]) -> None:
    server, command = opened(), opened()
    command.set("a", "*", TEXT, ["a.example"])
    assert server.find("a", "ann").value == TEXT
    command.remove("a", "*")
    with pytest.raises(NotFound):
        server.find("a", "ann")
    with pytest.raises(NotFound):
        command.remove("a", "*")
    for path in tmp_path.iterdir():
        assert TEXT.encode() not in path.read_bytes(), f"{path} still has it"


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / SECRETS_FILE
    SecretStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        SecretStore(path)


@pytest.mark.parametrize(
    ("name", "value", "origins"),
    [("a b", TEXT, ["a.example"]), ("a", "short", ["a.example"]), ("a", "line\nbreak 123", ["a.example"]), ("a", TEXT, []),
     ("a", TEXT, ["ftp://a.example"]), ("a", "x" * 9000, ["a.example"]), ("a", "ümläut-secret", ["a.example"])],
)  # fmt: skip
def test_what_cannot_stand_in_a_header_is_no_secret(
    opened: Callable[[], SecretStore], name: str, value: str, origins: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        opened().set(name, "*", value, origins)
    assert value not in str(caught.value)


def test_a_damaged_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / SECRETS_FILE).write_bytes(b"no database at all" * 100)
    (tmp_path / SECRETS_FILE).chmod(0o600)
    with pytest.raises(Unavailable):
        SecretStore(tmp_path / SECRETS_FILE)


def test_the_command_reads_a_secret_and_never_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data-dir", str(tmp_path)]
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    assert secret_command(["set", "github", "--tenant", "ann", "--for", "api.github.com", *data]) == 0
    assert secret_command(["list", "--json", *data]) == 0
    shown = capsys.readouterr().out
    assert TEXT not in shown
    listed = json.loads(shown.splitlines()[-1] if shown.splitlines()[-1].startswith("{") else shown[shown.index("{") :])
    assert listed["secrets"][0]["origins"] == ["https://api.github.com"]
    with closing(SecretStore(tmp_path / SECRETS_FILE)) as store:
        assert store.find("github", "ann").value == TEXT
    assert secret_command(["rm", "github", "--tenant", "ann", *data]) == 0
    with closing(SecretStore(tmp_path / SECRETS_FILE)) as store:
        assert store.entries() == []


def test_runs_that_may_reach_something_else_have_another_warm_server(tmp_path: Path) -> None:
    plain = Settings(data_dir=tmp_path, state_dir=tmp_path / "state")
    allowed = replace(plain, http_allow=("all,*",))
    other_secrets = replace(plain, secrets_file=tmp_path / "others.sqlite3")
    tools = replace(plain, mcp_file=tmp_path / "mcp.json")
    warm = [_warm_settings(each) for each in (plain, allowed, other_secrets, tools)]
    assert len({each.state_dir for each in warm}) == 4
    assert warm[0].secrets == tmp_path / SECRETS_FILE
    assert warm[2].secrets == tmp_path / "others.sqlite3"


def test_a_program_is_not_told_what_is_wrong_with_the_servers_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / SECRETS_FILE
    path.touch(0o644)
    path.chmod(0o644)
    with closing(LazySecrets(path)) as secrets, pytest.raises(Unavailable) as caught:
        secrets.find("github", "ann")
    assert str(path) not in caught.value.message
    assert f"chmod 600 {path}" in caplog.text
