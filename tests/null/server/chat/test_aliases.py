"""Other names for what is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.models.adapter_options import AdapterOptions
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.chat.aliases import read_aliases
from inferd_runtime.settings.settings import EngineSettings

SERVED = EngineSettings(model=(ModelOptions("tiny"), ModelOptions("other")))


def test_an_alias_stands_for_a_model() -> None:
    assert read_aliases(["gpt-4o=tiny", " o3 = other"], SERVED) == {"gpt-4o": "tiny", "o3": "other"}
    adapted = EngineSettings(adapter=(AdapterOptions("pirate", Path("folder")),))
    assert read_aliases(["gpt-4o=tiny", "o3=pirate"], adapted) == {"gpt-4o": "tiny", "o3": "pirate"}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["gpt-4o"], "NAME=MODEL"), (["=tiny"], "NAME=MODEL"), (["a="], "NAME=MODEL"), (["a=nix"], "'nix' is not served"),
        (["tiny=tiny"], "stands for something"),
        (["a=tiny", "a=other"], "stands for something"), (["a=tiny", "b=a"], "'a' is not served"),
    ],
)  # fmt: skip
def test_an_alias_that_is_wrong_is_refused_when_the_server_starts(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_aliases(texts, SERVED)
