"""The settings' page of the documentation is what the fields say, and no secret reaches the engine."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from settings_reference import reference

from inferd_runtime.server.supervisor.commands import default_commands
from inferd_runtime.settings.settings import ENGINE_FIELDS, FIELDS, OTHER_FIELDS, EngineSettings, Settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "python scripts/settings_reference.py > docs/reference/settings.md"


def test_every_setting_has_one_place_a_help_text_and_a_flag_of_its_own() -> None:
    assert not ENGINE_FIELDS.keys() & OTHER_FIELDS.keys()
    assert {field.name for field in fields(EngineSettings)} - FIELDS.keys() == {"tenancy", "snapshots", "plain"}
    assert {field.name for field in fields(Settings)} - FIELDS.keys() == {"engine"}
    assert all(field.help for field in FIELDS.values())
    assert len({field.flag for field in FIELDS.values()}) == len(FIELDS)


def test_defaults_pass_their_own_checks() -> None:
    for field in FIELDS.values():
        field.validate(field.default)


def test_tokens_stay_out_of_what_the_engine_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("secret-of-ann ann weight=2\n")
    file.chmod(0o600)
    launch = default_commands(Settings(token="secret-of-all", tokens_file=file)).engine("ipc://x", "key")
    told = launch.document().decode()
    assert "ann" in told, "her share is in it"
    assert "secret" not in told
    assert str(file) not in told
    assert "ann" not in " ".join(launch.command), "everybody on the machine sees the command line"
