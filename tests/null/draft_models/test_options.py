"""Which draft models are loaded: as text, as a table, from settings and on the engine's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.draft_models.options import DraftAddress, DraftOptions, choices_of, read_drafts
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.engine_process.command import EngineStart
from inferd_runtime.server.supervisor.commands import default_commands
from inferd_runtime.settings.sources import Sources, resolve


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tiny-draft", DraftOptions(ModelOptions("tiny-draft"))),
        ("a/b,process=true", DraftOptions(ModelOptions("a/b"), process=True)),
        ("d,for=tiny,timeout_ms=40", DraftOptions(ModelOptions("d"), "tiny", False, 40)),
        ("d,choice=ucb", DraftOptions(ModelOptions("d"), choice="ucb")),
        ("d,at=127.0.0.1:70", DraftOptions(ModelOptions("d"), at=DraftAddress("127.0.0.1", 70, False))),
        ("d,at=gpu-2.lan:7071", DraftOptions(ModelOptions("d"), at=DraftAddress("gpu-2.lan", 7071, True))),
        ("d,at=[fe80::1]:7071,tls=false", DraftOptions(ModelOptions("d"), at=DraftAddress("fe80::1", 7071, False))),
        ("d,at=localhost:7071,tls=true", DraftOptions(ModelOptions("d"), at=DraftAddress("localhost", 7071, True))),
        ("d,dtype=bfloat16,for=tiny,pages=9", DraftOptions(ModelOptions("d", "bfloat16", "", 9), "tiny")),
    ],
)
def test_text_is_read_and_reaches_another_process(text: str, options: DraftOptions) -> None:
    assert DraftOptions.parse(text) == options
    assert decode_settings(encode_settings(options), DraftOptions) == options


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("d,process=maybe", "process must be true or false"),
        ("d,at=host", "draft model 'd': at: expected HOST:PORT, got 'host'"),
        ("d,at=host:0", "expected HOST:PORT"),
        ("d,at=host:70000", "expected HOST:PORT"),
        ("d,at=ho st:7", "expected HOST:PORT"),
        ("d,at=fe80::1:7", "expected HOST:PORT"),
        ("d,at=", "expected HOST:PORT"),
        ("d,at=host:7,tls=maybe", "tls must be true or false"),
        ("d,tls=true", "tls is for a draft model at HOST:PORT"),
        ("d,at=host:7,process=true", "process and at are two places"),
        ("d,at=host:7,dtype=bfloat16", "`inferd serve-draft` decides how"),
        ("d,timeout_ms=0", "timeout_ms must be a positive whole number"),
        ("d,choice=best", "draft model 'd': choice must be one of thompson, ucb, got 'best'"),
        ("d,choice=", "choice must be one of"),
        ("d,choice=ucb,choice=ucb", "choice is given twice"),
        ([{"name": "d", "choice": 3}], "choice must be one of"),
        ("d,for=a,for=b", "for is given twice"),
        ("d,speed=9", "has no option 'speed'"),
        ("d,dtype=int3", "dtype 'int3'"),
        (",process=true", "name must not be empty"),
        ("d;d,process=true", "'d' is given twice"),
        ([{"name": "d", "pages": -1}], "pages must be"),
        ([3], "expected a draft model"),
        (3, "expected a draft model or a list"),
    ],
)
def test_what_is_wrong_is_named(value: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        read_drafts(value)


def test_a_model_may_draft_for_several_targets() -> None:
    drafts = read_drafts("d,for=a;d,for=b")
    assert [draft.target_among(["a", "b"]) for draft in drafts] == ["a", "b"]
    assert DraftOptions.parse("d").target_among(["a", "b"]) == "a"
    with pytest.raises(NotFound, match="draft model 'd': no model 'c' is served"):
        DraftOptions.parse("d,for=c").target_among(["a", "b"])


def test_how_it_is_chosen_is_said_once_for_each_target() -> None:
    drafts = read_drafts("d,choice=ucb;e;d,for=b;e,for=b")
    assert choices_of(drafts, ["a", "b"]) == {"a": "ucb", "b": "thompson"}
    with pytest.raises(InvalidRequest, match="draft models of 'a': choice is thompson here and ucb there"):
        choices_of(read_drafts("d,choice=ucb;e,for=a,choice=thompson"), ["a", "b"])
    with pytest.raises(NotFound, match="no model 'c'"):
        choices_of(read_drafts("d,for=c"), ["a"])


def test_settings_reach_the_engines_command_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('draft = ["tiny-draft", { name = "other", process = true, timeout_ms = 90 }]\n')
    settings = resolve(Sources({}, {"XDG_DATA_HOME": str(tmp_path)}, path))
    drafts = settings.engine.draft
    told = encode_settings(default_commands(settings).engine("ipc://x", "key").settings)
    assert decode_settings(told, EngineStart).settings.draft == drafts
    assert [(draft.model.name, draft.process, draft.timeout_ms) for draft in drafts] == [
        ("tiny-draft", False, 250), ("other", True, 90),
    ]  # fmt: skip
    assert resolve(Sources({"draft": ["one", "two"]}, {"INFERD_DRAFT": "three"})).engine.draft[1].model.name == "two"
