"""The key of draft engines: from a file of its owner alone, never in a child's arguments or in its environment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.draft_models.options import DraftAddress, read_drafts
from inferd_runtime.server.draft_server import draft_server
from inferd_runtime.server.engine_process.draft_secrets import draft_secrets
from inferd_runtime.server.supervisor.commands import default_commands
from inferd_runtime.settings.settings import EngineSettings, Settings

KEY = "0123456789abcdef0123456789abcdefQQ"


def settings(tmp_path: Path, text: str = KEY + "\n", mode: int = 0o600) -> Settings:
    file = tmp_path / "draft.key"
    file.write_text(text)
    file.chmod(mode)
    engine = EngineSettings(draft=read_drafts("tiny-draft,at=127.0.0.1:7071"))
    return Settings(engine=engine, draft_key_file=file, data_dir=tmp_path)


def test_the_engine_gets_the_key_on_its_standard_input_and_nowhere_else(tmp_path: Path) -> None:
    launch = default_commands(settings(tmp_path)).engine("ipc:///tmp/x", "00")
    assert KEY not in " ".join(launch.command)
    assert KEY not in json.dumps(dict(launch.environment))
    assert KEY.encode() in launch.document()


def test_a_server_without_draft_engines_reads_no_key(tmp_path: Path) -> None:
    plain = replace(settings(tmp_path), engine=EngineSettings())
    assert draft_secrets(plain).key == ""
    assert KEY.encode() not in default_commands(plain).engine("ipc:///tmp/x", "00").document()


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (KEY, 0o644, "chmod 600"),
        ("short", 0o600, "too easy to guess"),
        ("a" * 64, 0o600, "too easy"),
        ("", 0o600, "too easy"),
    ],
)
def test_a_key_that_others_read_or_guess_is_refused(tmp_path: Path, text: str, mode: int, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        draft_secrets(settings(tmp_path, text, mode))


def test_both_sides_ask_for_a_key(tmp_path: Path) -> None:
    without = replace(settings(tmp_path), draft_key_file=None)
    with pytest.raises(InvalidRequest, match="--draft-key-file"):
        draft_secrets(without)
    with (
        pytest.raises(InvalidRequest, match="--draft-key-file"),
        draft_server(without, DraftAddress("127.0.0.1", 0, False)),
    ):
        pass


def test_a_draft_engine_that_others_can_reach_needs_tls_or_a_word(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRequest, match="--insecure"),
        draft_server(settings(tmp_path), DraftAddress("192.0.2.7", 7071, True)),
    ):
        pass


def test_certificates_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        draft_secrets(replace(settings(tmp_path), ca=tmp_path / "nowhere.pem"))
