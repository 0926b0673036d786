"""A model's name that cannot be served is refused before anything is built or started for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.protocol import NotFound
from inferd_runtime.models.names import EMBEDDED, check_names
from inferd_runtime.models.store.store import ModelNote, ModelStore, write_note


def test_what_may_be_a_model_passes(tmp_path: Path) -> None:
    check_names(
        [*EMBEDDED, str(tmp_path), "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.7B", "gpt2", "distilgpt2"], ModelStore(tmp_path)
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("./no-such-model", r"'\./no-such-model' cannot be loaded: nothing is at /.*/no-such-model"),
        ("/no/such/model", "nothing is at /no/such/model"),
        ("~/no-such-model", f"nothing is at {Path.home()}/no-such-model"),
        ("weights.gguf", "nothing is at /.*/weights.gguf"),
        ("smollm2-135m", "is not here yet: `inferd pull smollm2-135m` brings it"),
        ("smolm2-135m", "there is no model 'smolm2-135m': is 'smollm2-135m' meant"),
        ("SmolLM2-135M", "is 'smollm2-135m' meant"),
        ("tinny", "is 'tiny' meant"),
    ],
)
def test_what_is_not_here_is_refused_by_name(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(NotFound, match=told):
        check_names(["tiny", name], ModelStore(tmp_path))


def test_a_slip_in_the_name_of_a_pulled_model_is_told_without_asking_the_hub(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with store.adding("my-own-model") as folder:
        write_note(folder, ModelNote("my-own-model", "somewhere"))
    with pytest.raises(NotFound, match="is 'my-own-model' meant"):
        check_names(["my-own-modell"], store)
