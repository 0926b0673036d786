"""Which models to serve: how they are written, what wins, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import InvalidRequest
from inferd_runtime.cli import VERBS
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.models.options import AUTO, DTYPES, WEIGHTS, ModelOptions, read_models
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.settings.sources import Sources, resolve

OPTIONS = st.builds(
    ModelOptions,
    name=st.text(st.characters(exclude_characters=",;", codec="ascii", categories=["L", "N", "P"]), min_size=1),
    dtype=st.sampled_from(["", *DTYPES, AUTO]),
    device=st.sampled_from(["", "cpu"]),
    weights=st.sampled_from(["", *WEIGHTS]),
    pages=st.integers(0, 10**6),
)


@given(OPTIONS)
def test_what_is_written_is_read_back(options: ModelOptions) -> None:
    text = f"{options.name}" + "".join(
        f",{key}={getattr(options, key)}" for key in ("dtype", "device", "pages", "weights") if getattr(options, key)
    )
    assert ModelOptions.parse(text) == options
    assert decode_settings(encode_settings(options), ModelOptions) == options


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "must not be empty"),
        (",dtype=float32", "must not be empty"),
        ("tiny,", "key=value"),
        ("tiny,bfloat16", "'bfloat16'"),
        ("tiny,dtyp=bfloat16", "no option 'dtyp'"),
        ("tiny,name=other", "name is given twice"),
        ("tiny,dtype=float12", "'float12' is not one of float32, bfloat16, float16, auto"),
        ("tiny,weights=int3", "'int3' is not one of half, int8, int4, fp8"),
        ("tiny,weights=half,device=cuda", "on a GPU weights are held as fp8, int8, int4"),
        ("tiny,weights=fp8,device=cpu", "on the CPU weights are held as half, int8, int4"),
        ("tiny,device=tpu", "'tpu' is not one of cpu, cuda, cuda:N"),
        ("tiny,device=cuda:x", "cuda:x"),
        ("tiny,pages=0", "pages must be a positive whole number, got '0'"),
        ("tiny,pages=-4", "'-4'"),
        ("tiny,pages=1,pages=2", "pages is given twice"),
    ],
)
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        ModelOptions.parse(text)


@pytest.mark.parametrize(
    "value", [3, [], "", [4], {"name": "tiny"}, [{"nmae": "tiny"}], [{"name": "tiny", "pages": True}]]
)
def test_what_is_no_list_of_models_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_models(value)


def test_a_model_given_twice_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'tiny' is given twice"):
        read_models(["tiny", "tiny-draft", "tiny,dtype=bfloat16"])


@pytest.mark.parametrize(
    ("flags", "environment", "text"),
    [
        ({"model": ["a,dtype=bfloat16", "b,pages=7"]}, {"INFERD_MODEL": "no"}, 'model = "no"'),
        ({}, {"INFERD_MODEL": "a,dtype=bfloat16;b,pages=7"}, 'model = "no"'),
        ({}, {}, 'model = ["a,dtype=bfloat16", "b,pages=7"]'),
        ({}, {}, '[[model]]\nname = "a"\ndtype = "bfloat16"\n[[model]]\nname = "b"\npages = 7\n'),
    ],
)
def test_several_models_from_every_source(
    tmp_path: Path, flags: dict[str, Any], environment: dict[str, str], text: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    settings = resolve(Sources(flags, environment, path))
    assert settings.engine.model == (ModelOptions("a", dtype="bfloat16"), ModelOptions("b", pages=7))


def test_a_models_own_options_win_over_those_of_all() -> None:
    flags = {"model": ["a,dtype=bfloat16,pages=3", "b,device=cuda:1"], "dtype": "float16", "pages": "9", "threads": "2"}
    settings = resolve(Sources(flags))
    expected = (ModelOptions("a", "bfloat16", "cpu", 3), ModelOptions("b", "float16", "cuda:1", 9))
    assert settings.engine.models == expected
    sent = decode_settings(encode_settings(settings.engine), EngineSettings)
    assert (sent.models, sent.threads) == (expected, 2)


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        ({"dtype": "int8"}, {}, "int8"),
        ({"device": "gpu"}, {}, "gpu"),
        ({"model": ["a", "a"]}, {}, "--model: model 'a' is given twice"),
        ({}, {"INFERD_MODEL": "a,b"}, "INFERD_MODEL: "),
    ],
)
def test_settings_refuse_by_name(flags: dict[str, Any], environment: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        resolve(Sources(flags, environment))


def test_the_command_line_starts_without_torch() -> None:
    """Importing it takes seconds, and only ``models fit`` needs it in this process."""
    verbs = ", ".join(sorted({f"inferd_runtime.cli.{module}" for module, _ in VERBS.values()}))
    code = f"import sys, {verbs}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
