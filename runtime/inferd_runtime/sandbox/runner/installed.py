"""A program's packages as ``importlib.metadata`` and ``importlib.resources`` see them."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.resources.abc import Traversable, TraversableResources
from pathlib import Path
from typing import Any

METADATA_SUFFIX = ".dist-info"


class PackageFiles(TraversableResources):
    """The files of one package, which lie in a folder for Python's own ways to read files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def files(self) -> Traversable:
        """Return the package's folder."""
        return Path("/", self._folder)


class InstalledPackage(importlib.metadata.Distribution):
    """What a package says about itself."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read

    def read_text(self, filename: str) -> str | None:
        """Return a file of the package's metadata, None if it has no such file."""
        try:
            return self._read(filename).decode()
        except FileNotFoundError:
            return None

    def locate_file(self, path: Any) -> Any:
        """Raises NotImplementedError: the files lie in no folder."""
        raise NotImplementedError(
            "the files of a program's packages lie in no folder: read them with importlib.resources"
        )


def packages_named(name: str | None, paths: Iterable[str]) -> Iterator[str]:
    """Yield the folders with the metadata of a package, of all packages for None."""
    folders = {path.partition("/")[0] for path in paths}
    for folder in sorted(folders):
        package = folder.removesuffix(METADATA_SUFFIX).partition("-")[0]
        if folder.endswith(METADATA_SUFFIX) and (name is None or _normal(package) == _normal(name)):
            yield folder


def _normal(name: str) -> str:
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
