"""The secrets of draft engines on other machines, read from files where the settings are read, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from inferd.protocol import InvalidRequest
from inferd_runtime.server.engine_process.command import DraftSecrets
from inferd_runtime.server.tenancy.tokens import check_strength
from inferd_runtime.server.tokens_file import read_private
from inferd_runtime.settings.settings import Settings


def draft_secrets(settings: Settings) -> DraftSecrets:
    """Return what the engine needs for its draft engines on other machines; nothing where there are none.

    Raises InvalidRequest if the key is missing, easy to guess or open to others.
    """
    if all(draft.at is None for draft in settings.engine.draft):
        return DraftSecrets()
    return DraftSecrets(read_draft_key(settings).decode(), _read_trusted(settings.ca))


def read_draft_key(settings: Settings) -> bytes:
    """Return the key of the settings' file. Raises InvalidRequest."""
    if settings.draft_key_file is None:
        raise InvalidRequest("a draft engine on another machine needs a key on both sides: give --draft-key-file")
    key = read_private(settings.draft_key_file, "the key of draft engines").strip()
    check_strength(key, f"the key in {settings.draft_key_file}")
    return key.encode()


def _read_trusted(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the certificates {path} cannot be read: {error}") from None
