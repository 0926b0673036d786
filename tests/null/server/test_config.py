"""Settings: where they come from, which one wins, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.models.adapter_options import AdapterOptions
from inferd_runtime.server.engine_process.command import EngineStart
from inferd_runtime.server.processes.child_protocol import exit_code, printed_error
from inferd_runtime.server.supervisor.commands import default_commands
from inferd_runtime.settings.settings import EngineSettings, Settings
from inferd_runtime.settings.sources import Sources, resolve, unknown_variables


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def settings_of_engine(settings: Settings) -> EngineSettings:
    """What an engine process reads from its standard input."""
    line = encode_settings(default_commands(settings).engine("ipc://x", "key").settings)
    return decode_settings(line, EngineStart).settings


def adapters(sources: Sources) -> list[str]:
    return [adapter.name for adapter in resolve(sources).engine.adapter]


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    path = config(tmp_path, 'port = 1\nmodel = "file"\nworkers = 2\n')
    settings = resolve(Sources({"port": "3"}, {"INFERD_PORT": "2", "INFERD_MODEL": "env"}, path))
    assert (settings.port, settings.engine.model[0].name, settings.workers, settings.host) == (3, "env", 2, "127.0.0.1")


def test_flags_that_were_not_given_change_nothing() -> None:
    assert resolve(Sources({"port": None}, {"INFERD_PORT": "2"})).port == 2


def test_the_file_is_found_where_it_is_usual_and_where_the_environment_says(tmp_path: Path) -> None:
    folder = tmp_path / "inferd"
    folder.mkdir()
    config(folder, "port = 5\n")
    other = config(tmp_path, "port = 6\n")
    assert resolve(Sources({}, {"XDG_CONFIG_HOME": str(tmp_path)})).port == 5
    assert resolve(Sources({}, {"XDG_CONFIG_HOME": str(tmp_path), "INFERD_CONFIG": str(other)})).port == 6


def test_a_variable_that_looks_like_a_setting_and_is_none_is_told_with_the_nearest_one() -> None:
    others = {"INFERD_CACHE_DIR": "/c", "INFERD_CONFIG": "/x", "INFERD_PORT": "1", "PATH": "/bin"}
    assert unknown_variables(others) == []
    assert unknown_variables({**others, "INFERD_TOKEN_FILE": "/t"}) == [
        "INFERD_TOKEN_FILE is the variable of no setting; there is INFERD_TOKENS_FILE"
    ]


def test_directories_follow_the_environment(tmp_path: Path) -> None:
    settings = resolve(Sources({}, {"XDG_DATA_HOME": "/d", "XDG_STATE_HOME": "/s", "INFERD_STATE_DIR": "~/mine"}))
    assert settings.data_dir == Path("/d/inferd")
    assert settings.state_dir == Path.home() / "mine"


@pytest.mark.parametrize(
    ("flags", "environment", "text", "named"),
    [
        ({"port": "x"}, {}, "", "^--port: expected a whole number, got 'x'$"),
        ({"memory_mb": "1.5"}, {}, "", "--limit-memory"),
        ({}, {"INFERD_MAX_WORKERS": "many"}, "", "INFERD_MAX_WORKERS"),
        ({"insecure": "perhaps"}, {}, "", "--insecure: expected true or false"),
        ({"log_format": "yaml"}, {}, "", "^--log-format: expected one of console, json, got 'yaml'$"),
        ({"weights": "int2"}, {}, "", "^--weights: expected one of half, fp8, int8, int4, got 'int2'$"),
        ({}, {}, 'port = "x"', "key port of the configuration file"),
        ({}, {}, "prot = 1", "no setting prot"),
        ({}, {}, "port = ", "config.toml"),
        ({"port": "70000"}, {}, "", "port must be"),
        ({"wall_s": "0"}, {}, "", "wall_s must be positive"),
        ({"workers": "9"}, {}, "", "max_workers"),
        ({}, {}, "data_dir = 3", "data_dir"),
        ({"speculation": "maybe"}, {}, "", "--speculation"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, flags: dict[str, Any], environment: dict[str, str], text: str, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        resolve(Sources(flags, environment, config(tmp_path, text)))


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nix\.toml does not exist"):
        resolve(Sources({}, {}, tmp_path / "nix.toml"))


def test_settings_cannot_be_changed_and_their_limits_agree() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]
    assert settings.limits.memory_mb == settings.memory_mb
    assert all(
        getattr(settings.limits, name) <= getattr(settings.max_limits, name)
        for name in settings.limits.__struct_fields__
    )


def test_adapters_come_from_every_source_and_reach_the_engine(tmp_path: Path) -> None:
    path = config(tmp_path, 'adapter = ["a=x", {name = "b", folder = "y", model = "tiny"}]\nmax_adapters = 3\n')
    settings = resolve(Sources({}, {}, path))
    both = (AdapterOptions("a", Path("x")), AdapterOptions("b", Path("y"), "tiny"))
    assert settings.engine.adapter == both
    reached = settings_of_engine(settings)
    assert (reached.adapter, reached.max_adapters) == (both, 3)
    assert adapters(Sources({}, {"INFERD_ADAPTER": "c=z;d=w"}, path)) == ["c", "d"]
    assert adapters(Sources({"adapter": ["e=v"]}, {"INFERD_ADAPTER": "c=z"})) == ["e"]
    with pytest.raises(InvalidRequest, match=r"--adapter: adapter 'e': expected NAME=FOLDER"):
        resolve(Sources({"adapter": ["e"]}))


def test_whether_to_speculate_reaches_the_engine() -> None:
    for value in ("on", "off"):
        assert settings_of_engine(resolve(Sources({"speculation": value}, {}))).speculation == value


def test_a_process_that_cannot_read_its_settings_reports_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    line = b'{"endpoint": "ipc://x", "key": "00", "settings": {"page_size": "many"}}'
    assert exit_code(lambda: pytest.fail(f"served {decode_settings(line, EngineStart)}")) == 2
    error = printed_error(capsys.readouterr().err.strip())
    assert isinstance(error, InvalidRequest)
    assert "$.settings.page_size" in error.message
