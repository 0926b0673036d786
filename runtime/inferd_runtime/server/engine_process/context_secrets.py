"""The store of saved contexts that servers share, with its secrets, which are read from a file and from nowhere else."""

from __future__ import annotations

import msgspec

from inferd.protocol import InvalidRequest
from inferd_runtime.kv.context_store import ContextStore
from inferd_runtime.server.tokens_file import read_private
from inferd_runtime.settings.settings import Settings


def context_store(settings: Settings) -> ContextStore:
    """Return where saved contexts lie that servers share. Raises InvalidRequest for a store that cannot be used as it is set."""
    if not settings.context_store:
        if settings.context_store_options is not None:
            raise InvalidRequest("--context-store-options are of a store: give --context-store, too")
        return ContextStore()
    if settings.context_dir is not None:
        raise InvalidRequest("saved contexts lie in one place: give --context-dir or --context-store")
    store = ContextStore(settings.context_store, _read_options(settings), settings.context_store_s)
    store.check()
    return store


def _read_options(settings: Settings) -> str:
    path = settings.context_store_options
    if path is None:
        return ""
    text = read_private(path, "the options of the store of saved contexts")
    try:
        msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path}: expected one JSON object: {type(error).__name__}") from None
    return text
