"""The standard library's sources, once its files are gone: for whoever runs a module of it again, and for lines of tracebacks."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import posixpath
import sys
import zlib
from collections.abc import Sequence
from types import ModuleType


class KeptSource(importlib.abc.ExecutionLoader):
    """Loads one module from its source, packed."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._packed = zlib.compress(source)

    def get_filename(self, fullname: str) -> str:
        """Return where the module's file was."""
        return self._path

    def get_source(self, fullname: str) -> str:
        """Return the module's text."""
        return importlib.util.decode_source(zlib.decompress(self._packed))

    def is_package(self, fullname: str) -> bool:
        """True if the module is a package's ``__init__``."""
        return posixpath.basename(self._path) == "__init__.py"

    def spec(self, fullname: str) -> importlib.machinery.ModuleSpec:
        """Return the spec of a copy of the module."""
        folders = [posixpath.dirname(self._path)] if self.is_package(fullname) else None
        spec = importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=folders
        )
        assert spec is not None
        return spec


class KeptLibrary(importlib.abc.MetaPathFinder):
    """Finds modules that were imported before, for programs that have taken them out of ``sys.modules`` to import them anew."""

    def __init__(self) -> None:
        self._loaders: dict[str, KeptSource] = {}

    def keep(self, module: ModuleType) -> None:
        """Keep the source of a module that came from a file."""
        spec = module.__spec__
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.origin is None:
            return
        with open(spec.origin, "rb") as file:
            loader = KeptSource(spec.origin, file.read())
        spec.loader = module.__loader__ = self._loaders[spec.name] = loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a kept module."""
        loader = self._loaders.get(fullname)
        return None if loader is None else loader.spec(fullname)


def keep_sources() -> None:
    """Keep the sources of all modules that have been imported. Call it while their files are there."""
    library = KeptLibrary()
    for module in list(sys.modules.values()):
        if os.path.isfile(getattr(module, "__file__", None) or ""):
            library.keep(module)
    sys.meta_path.append(library)
