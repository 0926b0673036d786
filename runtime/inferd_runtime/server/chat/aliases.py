"""Other names under which LLM clients ask for what is served: some tools know no names but those of their vendor's models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from inferd.protocol import InvalidRequest
from inferd_runtime.settings.settings import EngineSettings


def read_aliases(texts: Iterable[str], served: Collection[str]) -> Mapping[str, str]:
    """Return what each ``NAME=MODEL`` stands for. Raises InvalidRequest for a taken name, and an unknown model."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, model = (part.strip() for part in text.partition("="))
        if not name or not model:
            raise InvalidRequest(f"alias: expected NAME=MODEL, got {text!r}")
        if model not in served:
            raise InvalidRequest(f"alias: {model!r} is not served; there are {', '.join(served)}")
        if name in served or name in found:
            raise InvalidRequest(f"alias: {name!r} stands for something already")
        found[name] = model
    return found


def served_names(engine: EngineSettings) -> list[str]:
    """Return the models and adapters that these settings serve."""
    return [*(model.name for model in engine.models), *(adapter.name for adapter in engine.adapter)]
