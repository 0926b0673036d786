"""The models that this user has pulled: a folder each, in transformers' format, with a note of where it came from."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound
from inferd_runtime.file_cache import cache_folder, locked, private_folder

NOTE = "inferd-model.json"
PARTIAL = ".partial-"
SLASH = "--"
"""Stands for "/" in a folder's name, and therefore in no model's."""
NAME = re.compile(r"(?!.*--)[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
MAX_NAME = 128
CONVERSION = 1
"""Counted up when GGUF files are read in another way, so that what was made of them before is not used."""


@dataclass(frozen=True)
class ModelNote:
    """Where a stored model came from. ``sha256`` is of the one file that it was made of, "" for several.

    ``folder`` is where the model lies if that is not the store: a folder of the user's own, which is never deleted.
    ``conversion`` is CONVERSION as it was when the one file was converted.
    """

    name: str
    source: str
    license: str = ""
    sha256: str = ""
    folder: str = ""
    conversion: int = 0


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine. ``size`` in bytes; 0 for a folder that belongs to the user."""

    note: ModelNote
    folder: Path
    size: int

    @property
    def outdated(self) -> bool:
        """True for a model that an earlier version has converted."""
        return bool(self.note.sha256) and self.note.conversion != CONVERSION


class ModelStore:
    """The folder of pulled models. Several processes may use it at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "models"

    def models(self) -> list[StoredModel]:
        """Return the models that are here, by name."""
        notes = sorted(self._folder.glob(f"*/{NOTE}")) if self._folder.is_dir() else []
        found = [_read(path.parent) for path in notes if not path.parent.name.startswith(PARTIAL)]
        return [model for model in found if model is not None]

    def find(self, name: str) -> StoredModel | None:
        """Return the model of this name, if it is here."""
        return _read(self._place(name)) if is_name(name) else None

    def unfinished(self) -> dict[str, int]:
        """Return what interrupted pulls have left, in bytes, by the models' names."""
        left: dict[str, int] = {}
        for path in self._folder.glob(f"{PARTIAL}*@*"):
            name = path.name.removeprefix(PARTIAL).rpartition("@")[0].replace(SLASH, "/")
            left[name] = left.get(name, 0) + _size(path)
        return left

    def remove(self, name: str) -> int:
        """Delete a model, of a user's own folder only the note, and what interrupted pulls of it have left.

        Returns the bytes that this gave back. Raises NotFound.
        """
        found, left = self.find(name), self.unfinished().get(name)
        if found is None and left is None:
            raise NotFound(f"no model {name!r} has been pulled; `inferd models` lists what is here")
        for path in (self._place(name), *self._partials(name)):
            shutil.rmtree(path, ignore_errors=True)
        return (0 if found is None else found.size) + (left or 0)

    @contextmanager
    def adding(self, name: str, resumes: str = "") -> Iterator[Path]:
        """Yield the folder to fill; when the body ends well, it takes the place of what had this name.

        ``resumes``: what exactly is brought. What a failed body leaves is found again by one that brings the same, so that a
        download can be resumed; "" keeps nothing of a failed body. One process at a time adds a name. Raises InvalidRequest
        for a name that no model can have.
        """
        if not is_name(name):
            raise InvalidRequest(
                f"a model's name has letters, digits, '.', '_', single '-' and at most one '/', not {name!r}; --name gives one"
            )
        private_folder(self._folder)
        place = self._place(name)
        partial = place.with_name(f"{PARTIAL}{place.name}@{hashlib.sha256(resumes.encode()).hexdigest()[:12]}")
        with locked(place.with_name(f"{PARTIAL}{place.name}.lock"), lambda: None):
            for other in self._partials(name):
                if other != partial or not resumes:
                    shutil.rmtree(other)
            partial.mkdir(exist_ok=True)
            with _kept_if(bool(resumes), partial):
                yield partial
            if not (partial / NOTE).is_file():
                raise AssertionError(f"{partial} has no note")
            if place.exists():
                shutil.rmtree(place)
            partial.replace(place)

    def check_room(self, size: int, budget: int, name: str = "") -> None:
        """Raise LimitExceeded if ``size`` more bytes do not fit on the disk, or into ``budget`` bytes (0: no limit).

        What interrupted pulls have left counts, except those of ``name``, which go on or are deleted.
        """
        private_folder(self._folder)
        left = sum(size for other, size in self.unfinished().items() if other != name)
        free, kept = shutil.disk_usage(self._folder).free, left + sum(model.size for model in self.models())
        if size > free:
            raise LimitExceeded(
                f"the model takes {size} bytes, and {free} are free in {self._folder}",
                limit="disk", value=free, raise_with="INFERD_CACHE_DIR, or `inferd models rm NAME`",
            )  # fmt: skip
        if budget and kept + size > budget:
            raise LimitExceeded(
                f"the model takes {size} bytes, and {kept} of the {budget} for models are in use",
                limit="models_bytes", value=budget, raise_with="--models-bytes, or `inferd models rm NAME`",
            )  # fmt: skip

    def _place(self, name: str) -> Path:
        return self._folder / name.replace("/", SLASH)

    def _partials(self, name: str) -> list[Path]:
        return list(self._folder.glob(f"{PARTIAL}{self._place(name).name}@*"))


@contextmanager
def _kept_if(kept: bool, folder: Path) -> Iterator[None]:
    """Delete a folder where the body fails, unless it is ``kept``."""
    try:
        yield
    except BaseException:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def is_name(name: str) -> bool:
    """Return True if a stored model may have this name."""
    return len(name) <= MAX_NAME and NAME.fullmatch(name) is not None


def write_note(folder: Path, note: ModelNote) -> None:
    """Write a model's note, last of all its files: a folder without one is not a model."""
    (folder / NOTE).write_bytes(msgspec.json.encode(note))


def _read(folder: Path) -> StoredModel | None:
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=ModelNote)
    except (OSError, msgspec.MsgspecError):
        return None
    if note.folder:
        return StoredModel(note, Path(note.folder), 0)
    return StoredModel(note, folder, _size(folder))


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files, which another process may be writing or deleting."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(at, name).stat().st_size
    return total
