"""Other names under which LLM clients ask for what is served: some tools know no names but those of their vendor's models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferd.protocol import InvalidRequest
from inferd_runtime.settings.settings import EngineSettings


def read_aliases(texts: Iterable[str], engine: EngineSettings) -> Mapping[str, str]:
    """Return what each ``NAME=MODEL`` stands for, a model or an adapter that these settings serve.

    Raises InvalidRequest for a name that is taken, and for a model that is not served.
    """
    served = [*(model.name for model in engine.models), *(adapter.name for adapter in engine.adapter)]
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
