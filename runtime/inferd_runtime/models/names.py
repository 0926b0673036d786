"""What a model's name stands for, as far as that can be said before anything is loaded."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.store.catalog import KNOWN
from inferd_runtime.models.store.store import ModelStore

EMBEDDED = {"tiny": "tiny/target", "tiny-draft": "tiny/draft"}
"""The embedded models, with their folders in this package. No other model may have their names."""
GGUF = ".gguf"
MAGIC = b"GGUF"
"""What such a file begins with, whatever it is called."""
NEARLY = 0.85
"""How much of a name without an owner has to be that of a model that is known, to be taken for a slip."""
PART = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.gguf)", re.IGNORECASE)
"""What the parts of a GGUF model are called."""


def check_names(names: Iterable[str], store: ModelStore | None = None) -> None:
    """Raise NotFound for a path where nothing is, a known model that was not pulled, and a slip. Hub ids are not looked up."""
    store = store or ModelStore()
    for name in names:
        path = path_of(name)
        found = store.find(name)
        if found is not None and found.outdated and not os.path.isdir(path):
            raise NotFound(
                f"model {name!r} was converted by an earlier version, which could read its tokenizer wrongly: "
                f"`inferd pull {name if name in KNOWN else found.note.source}` brings it anew"
            )
        if name in EMBEDDED or os.path.exists(path) or found is not None:
            continue
        if name in KNOWN:
            raise NotFound(f"model {name!r} is not here yet: `inferd pull {name}` brings it")
        if path.is_absolute() or name.startswith(".") or path.suffix.lower() == GGUF:
            raise NotFound(f"model {name!r} cannot be loaded: nothing is at {path.absolute()}")
        if near := _nearly(name, store):
            raise NotFound(f"there is no model {name!r}: is {near!r} meant?")


def _nearly(name: str, store: ModelStore) -> str:
    """Return the model that a name without an owner nearly names; "" if there is none. The hub would be asked for a minute."""
    known = [] if "/" in name else [*KNOWN, *EMBEDDED, *(model.note.name for model in store.models())]
    return next(iter(difflib.get_close_matches(name.lower(), known, 1, NEARLY)), "")


def path_of(name: str) -> Path:
    """Return the path that a model's name may be."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # "~somebody" who is not known here
        return Path(name)


def gguf_parts(file: Path) -> list[Path]:
    """Return the files of a GGUF model in order, by any one of them. Raises InvalidRequest where one is missing."""
    found = PART.fullmatch(file.name)
    if found is None:
        return [file]
    stem, count, end = found.groups()
    files = [file.with_name(f"{stem}-{at:05}-of-{count}{end}") for at in range(1, int(count) + 1)]
    lacking = [part.name for part in files if not part.is_file()]
    if lacking:
        raise InvalidRequest(f"{file.name} is a part of a model, and its part {lacking[0]} is not beside it")
    return files


def gguf_stem(file: Path) -> str:
    """Return the name of a GGUF model's file without its end, and without the number of a part."""
    found = PART.fullmatch(file.name)
    return file.stem if found is None else found[1]


def is_gguf(path: Path) -> bool:
    """Return True for a GGUF file, and for what is called like one but is not there."""
    if path.suffix.lower() == GGUF:
        return not os.path.isdir(path)
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # no such file, or no path at all
        return False
