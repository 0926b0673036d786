"""A program's source as importable modules."""

from __future__ import annotations

import base64
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import linecache
import marshal
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import CodeType, ModuleType
from typing import Any, Protocol, TypeAlias

from inferd.protocol import InvalidRequest
from inferd_runtime.sandbox.runner.installed import InstalledPackage, PackageFiles, packages_named

ENTRY_ALIAS = "__program__"
"""Name of the entry's module when a module that exists already has the name that its file gives it."""
FOLDER = "program_folder"
"""Name of the package that the folder of an entry is, which imports from it relatively (``from .helper import f``)."""
RELATIVE_IMPORT = re.compile(r"^\s*from\s+\.", re.MULTILINE)
PACKAGES = "site-packages"
"""The folder that packages seem to be in."""


class ProgramLibrary(Protocol):
    """Where a program's packages are; ``world.wit`` says in which form."""

    def file(self, path: str) -> str:
        """Return a file of the packages."""

    def code(self, path: str) -> str:
        """Return what a module of the program was compiled to; "" where it was not."""


@dataclass(frozen=True)
class LoadedProgram:
    """A bundle: ``files`` maps relative paths to text, ``entry`` is the one that defines ``main``.

    ``seed``: of the module ``random``, and of samplers without a seed of their own. ``data`` and ``packages`` are other files of
    the program's folder, in Base64, and the names of its packages' files, which ``library`` has. ``keeps_code``: that has what
    earlier runs compiled as well, and gets what this one ``compiled``.
    """

    name: str
    files: Mapping[str, str]
    entry: str
    seed: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    packages: Collection[str] = frozenset()
    library: ProgramLibrary | None = None
    keeps_code: bool = False
    compiled: dict[str, CodeType] = field(default_factory=dict, compare=False)

    @property
    def sources(self) -> dict[str, str]:
        """The files that are Python."""
        return {path: text for path, text in self.files.items() if path.endswith(".py")}

    @property
    def own(self) -> Iterable[str]:
        """The paths of its own files."""
        return (*self.files, *self.data)

    @property
    def installed(self) -> Iterator[str]:
        """The paths of its packages' files, which begin with ``PACKAGES``."""
        return (f"{PACKAGES}/{path}" for path in self.packages)

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """The names in each folder, by its path; that of the program's own is ""."""
        folders: dict[str, set[str]] = {"": set()}
        for path in (*self.own, *self.installed):
            while path:
                path, name = posixpath.split(path)
                folders.setdefault(path, set()).add(name)
        return {folder: sorted(names) for folder, names in folders.items()}

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.data or _installed(path) in self.packages

    def read(self, path: str) -> bytes:
        """Return a file. Raises FileNotFoundError."""
        if path in self.files:
            return self.files[path].encode()
        if path in self.data:
            return base64.b64decode(self.data[path])
        if self.library is None or _installed(path) not in self.packages:
            raise FileNotFoundError(path)
        return base64.b64decode(self.library.file(_installed(path)))

    def code(self, path: str) -> CodeType | None:
        """Return what an earlier run compiled a module to."""
        kept = self.library.code(path) if self.library is not None and self.keeps_code else ""
        try:
            code = marshal.loads(base64.b64decode(kept)) if kept else None
        except (ValueError, EOFError, TypeError):  # an earlier run can keep what it likes
            return None
        return code if isinstance(code, CodeType) else None


def _installed(path: str) -> str:
    return path.removeprefix(f"{PACKAGES}/") if path.startswith(f"{PACKAGES}/") else ""


Execute: TypeAlias = Callable[[ModuleType, Callable[[], None]], None]
"""Runs a module's code, which is the second argument."""


def plainly(module: ModuleType, code: Callable[[], None]) -> None:
    """Run a module's code, and no more."""
    code()


class BundleLoader(importlib.abc.ExecutionLoader):
    """Loads one module of a program. ``get_data`` reads any file of the bundle, for ``pkgutil.get_data``."""

    def __init__(self, program: LoadedProgram, path: str, execute: Execute) -> None:
        self._program = program
        self._path = path
        self._execute = execute

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        self._execute(module, partial(super().exec_module, module))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, which is compiled unless an earlier run did that."""
        code = self._program.code(self._path)
        if code is None and (code := super().get_code(fullname)) is not None:
            self._program.compiled[self._path] = code
        return code

    def get_filename(self, fullname: str) -> str:
        """Return the module's path in the bundle."""
        return self._path

    def get_source(self, fullname: str) -> str:
        """Return the module's text. Of the program's own that is what was uploaded and checked, whatever encoding it names."""
        return self._program.files.get(self._path) or importlib.util.decode_source(self._program.read(self._path))

    def is_package(self, fullname: str) -> bool:
        """True if the module is a package's ``__init__``."""
        return posixpath.basename(self._path) == "__init__.py"

    def get_data(self, path: str) -> bytes:
        """Return a file of the bundle. Raises FileNotFoundError."""
        return self._program.read(posixpath.normpath(path).lstrip("/"))

    def get_resource_reader(self, fullname: str) -> PackageFiles:
        """Return what ``importlib.resources`` reads the package's files with."""
        return PackageFiles(posixpath.dirname(self._path))


class BundleFinder(importlib.metadata.DistributionFinder):
    """Finds a program's modules: beside its entry first, then from the top of the bundle, then in its packages."""

    def __init__(self, program: LoadedProgram, roots: Sequence[str], execute: Execute) -> None:
        self._program = program
        self._execute = execute
        self._roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module or package of the bundle, a folder without ``__init__.py`` included."""
        name = fullname.rpartition(".")[2]
        if fullname == FOLDER:
            return self._folder_spec(FOLDER, self._roots[0])
        for folder in self._roots if path is None else path:
            base = posixpath.join(folder, name)
            for file in (f"{base}/__init__.py", f"{base}.py"):
                if file in self._program:
                    return self._spec(fullname, file)
            if base in self._program.folders:
                return self._folder_spec(fullname, base)
        return None

    def _folder_spec(self, fullname: str, folder: str) -> importlib.machinery.ModuleSpec:
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec

    def folder(self, path: str) -> BundleFolder:
        """Return what is in a folder of the bundle, for ``pkgutil``. Raises ImportError for what is none."""
        inside = posixpath.normpath(f"/{path}").lstrip("/")
        if inside not in self._program.folders:
            raise ImportError(f"no folder of the program: {path}", path=path)
        return BundleFolder(self, inside)

    def names_in(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the modules in a folder, and whether they are packages."""
        for name in self._program.folders[folder]:
            if posixpath.join(folder, name, "__init__.py") in self._program:
                yield name, True
            elif name.endswith(".py") and name != "__init__.py":
                yield name.removesuffix(".py"), False

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[InstalledPackage]:
        """Yield what ``importlib.metadata`` asks for among the packages."""
        for folder in packages_named(None if context is None else context.name, self._program.packages):
            yield InstalledPackage(partial(self._read_installed, folder))

    def _read_installed(self, folder: str, name: str) -> bytes:
        return self._program.read(f"{PACKAGES}/{folder}/{name}")

    def _spec(self, fullname: str, file: str) -> importlib.machinery.ModuleSpec | None:
        loader = BundleLoader(self._program, file, self._execute)
        spec = importlib.util.spec_from_file_location(fullname, file, loader=loader)
        if spec is not None and loader.is_package(fullname):
            spec.submodule_search_locations = [posixpath.dirname(file)]
        return spec


class BundleFolder(importlib.abc.PathEntryFinder):
    """One folder of a bundle, whose modules ``pkgutil`` lists: so packages find their plugins."""

    def __init__(self, finder: BundleFinder, folder: str) -> None:
        self._finder = finder
        self._folder = folder

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the folder."""
        return self._finder.find_spec(fullname, [self._folder])

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Yield the modules in the folder, and whether they are packages."""
        for name, is_package in self._finder.names_in(self._folder):
            yield prefix + name, is_package


def load(program: LoadedProgram, execute: Execute = plainly) -> Callable[..., Any]:
    """Make the program's files importable, import its entry, and return its ``main``.

    Raises whatever the program's own code raises, and InvalidRequest for an entry that is not there, for one that defines no
    ``main``, and for a file that would hide a module of the standard library or the SDK from the program.
    """
    if program.entry not in program.sources:
        raise InvalidRequest(f"the bundle has no Python file {program.entry!r} to start from")
    for path, text in program.sources.items():
        lines = text if text.endswith("\n") else f"{text}\n"
        linecache.cache[path] = (len(text), None, lines.splitlines(keepends=True), path)
    name, root = _module_name(program)
    roots = list(dict.fromkeys([root, ""]))
    _refuse_hiding(program, roots)
    finder = BundleFinder(program, [*roots, PACKAGES], execute)
    sys.meta_path.insert(0, finder)
    sys.path_hooks.insert(0, finder.folder)
    module = _import_alias(program, execute) if name in sys.modules else importlib.import_module(name)
    main = getattr(module, "main", None)
    if not callable(main):
        raise InvalidRequest(f"{program.entry} defines no function `main`")
    return main  # type: ignore[no-any-return]


def let_go() -> None:
    """Empty the program's modules: it has failed, and what they hold fills the memory that is needed to say so."""
    for module in sys.modules.values():  # not of a copy: there may be no memory for one
        if isinstance(getattr(module.__spec__, "loader", None), BundleLoader):
            module.__dict__.clear()


def _module_name(program: LoadedProgram) -> tuple[str, str]:
    """Return the entry's module name, and the folder that it counts from: the one above the package that it belongs to."""
    folder, file = posixpath.split(program.entry)
    names = [file.removesuffix(".py")]
    while folder and posixpath.join(folder, "__init__.py") in program.files:
        folder, package = posixpath.split(folder)
        names.insert(0, package)
    if len(names) == 1 and RELATIVE_IMPORT.search(program.sources[program.entry]):
        names.insert(0, FOLDER)
    return ".".join(names), folder


def _refuse_hiding(program: LoadedProgram, roots: Sequence[str]) -> None:
    for path in program.sources:
        for root in roots:
            inside = path.startswith(f"{root}/") if root else True
            top = posixpath.relpath(path, root or ".").split("/")[0].removesuffix(".py") if inside else ""
            if path != program.entry and top in sys.modules:
                raise InvalidRequest(
                    f"{path} would hide the module {top!r} of the standard library or the SDK: rename it"
                )


def _import_alias(program: LoadedProgram, execute: Execute) -> ModuleType:
    loader = BundleLoader(program, program.entry, execute)
    spec = importlib.util.spec_from_file_location(ENTRY_ALIAS, program.entry, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[ENTRY_ALIAS] = module
    loader.exec_module(module)
    return module
