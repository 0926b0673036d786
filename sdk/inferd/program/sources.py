"""A program's files, read from where their author keeps them. Nothing is parsed here but a folder's name for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inferd.program.manifest import project_manifest, script_manifest
from inferd.program.pie import PIE_FILE, read_pie_file
from inferd.protocol import InvalidRequest, LimitExceeded

MAX_SOURCE_BYTES = 1 << 20
MAX_FILES = 256
MAX_DATA_BYTES = 2 << 20
"""Of the files that are not source."""
ENTRY = "main.py"
PROJECT = "pyproject.toml"


@dataclass(frozen=True)
class ProgramSources:
    """Source texts and other files by relative path. ``name``: of the file or folder that they came from."""

    name: str
    files: dict[str, str]
    entry: str = ENTRY
    data: dict[str, bytes] = field(default_factory=dict)

    def named(self) -> str:
        """Return the name that the program gives itself, else that of its file or folder."""
        if (
            PIE_FILE in self.data
            and (pie := read_pie_file(self.data[PIE_FILE].decode(errors="replace"), PIE_FILE)).name
        ):
            return pie.name
        if PROJECT in self.files:
            return project_manifest(self.files[PROJECT], self.name).name
        source = self.files.get(self.entry, "")
        return script_manifest(source, f"{self.name}/{ENTRY}" if self.entry == ENTRY else self.entry).name


def read_program(path: Path) -> ProgramSources:
    """Return the files of a program: a ``.py`` file, or a folder with a ``main.py``, which stands for the folder where a
    ``pyproject.toml`` with ``[tool.inferd]`` lies beside it.

    Raises InvalidRequest for what is no program, LimitExceeded for one too large.
    """
    if path.is_dir():
        return _read_folder(path)
    project = path.with_name(PROJECT)
    if path.name == ENTRY and project.is_file() and "[tool.inferd" in _read_text(project):
        return _read_folder(path.parent)
    if path.suffix != ".py":
        raise InvalidRequest(f"{path} is no program: a program is a .py file or a folder with a {ENTRY}")
    return ProgramSources(path.stem, {path.name: _read_text(path)}, path.name)


def _read_folder(folder: Path) -> ProgramSources:
    if not (folder / ENTRY).is_file():
        raise InvalidRequest(f"{folder} is no program: it has no {ENTRY}")
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_hidden(path.relative_to(folder))]
    if len(found) > MAX_FILES:
        raise too_large(f"{folder} has {len(found)} files", "files", MAX_FILES)
    sources = [path for path in found if path.suffix == ".py" or path == folder / PROJECT]
    files = {path.relative_to(folder).as_posix(): _read_text(path) for path in sources}
    data = {path.relative_to(folder).as_posix(): _read_data(path) for path in found if path not in sources}
    return ProgramSources(folder.resolve().name, files, ENTRY, data)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", "build", "dist", "tests") for part in path.parts)


def _read_data(path: Path) -> bytes:
    if path.stat().st_size > MAX_DATA_BYTES:
        raise too_large(f"{path} has {path.stat().st_size} bytes", "data_bytes", MAX_DATA_BYTES)
    return path.read_bytes()


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise too_large(f"{path} has {path.stat().st_size} bytes", "source_bytes", MAX_SOURCE_BYTES)
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text: {error}") from None


def too_large(what: str, limit: str, value: int) -> LimitExceeded:
    """Return the error of a program of which there is too much."""
    return LimitExceeded(
        f"{what}; a program may have {value}", limit=limit, value=value, raise_with="a smaller program"
    )
