"""Reads wheels, which are strangers' archives: what of them a program gets. Pure.

The format is that of the packaging specifications, "Binary distribution format".
"""

from __future__ import annotations

import io
import lzma
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.server.packages.guest_modules import GUEST_MODULES

MAX_FILES = 4000
MAX_BYTES = 16 << 20
"""Of all files of a program's packages together."""
MAX_PATH = 200
NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".lib", ".o")
LEFT_OUT = (".pyc", ".pyi", ".pth")
KEPT_METADATA = ("METADATA", "entry_points.txt")
DAMAGE = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, OSError, ValueError,
)  # fmt: skip
"""What reading a damaged archive raises."""
CODE_FOLDERS = ("purelib", "platlib")
RESERVED = frozenset({"inferd", "inferlet", "inferd_runtime", "wit_world"})


class NativeWheel(InvalidRequest):
    """A wheel has compiled code in it, which the sandbox cannot run."""


def wheel_files(wheel: bytes, name: str, *, without_native: bool = False) -> dict[str, bytes]:
    """Return the files of a wheel by the path where they would be installed.

    Compiled Python, stubs, scripts and headers are left out, and with ``without_native`` compiled code. Raises NativeWheel for
    that otherwise, InvalidRequest for an archive that is damaged, leads out of its folder, has links, or would hide a module of
    the standard library, LimitExceeded for too many or too large files.
    """
    files: dict[str, bytes] = {}
    room = MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for info in _entries(archive, name):
                path = _installed_path(info, name)
                if path is None or (without_native and path.endswith(NATIVE)):
                    continue
                if path.endswith(NATIVE):
                    raise NativeWheel(f"{name} has compiled code ({path[:MAX_PATH]})")
                files[path] = _content(archive, info, room, name)
                room -= len(files[path])
    except DAMAGE as error:
        raise InvalidRequest(f"{name} is damaged: {error}") from None
    return files


def check_total(files: dict[str, bytes]) -> None:
    """Raises LimitExceeded if packages have too many files together, or too large ones."""
    if len(files) > MAX_FILES:
        raise _too_much(f"{len(files)} files", "package_files", MAX_FILES)
    if (size := sum(map(len, files.values()))) > MAX_BYTES:
        sizes = Counter[str]()
        for path, content in files.items():
            sizes[path.partition("/")[0]] += len(content)
        top, most = sizes.most_common(1)[0]
        raise _too_much(f"{size} bytes, {most} of them in {top}", "package_bytes", MAX_BYTES)


def _too_much(what: str, limit: str, value: int) -> LimitExceeded:
    text = f"the program's packages have {what}; {value} are allowed"
    return LimitExceeded(text, limit=limit, value=value, raise_with="fewer dependencies")


def _entries(archive: zipfile.ZipFile, name: str) -> Iterator[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise _too_much(f"{len(entries)} files in {name} alone", "package_files", MAX_FILES)
    for info in entries:
        if stat.S_ISLNK(info.external_attr >> 16):
            raise InvalidRequest(f"{name} has a link in it ({info.filename[:MAX_PATH]!r})")
        if not info.filename.endswith("/"):  # is_dir() raises IndexError for a name of nothing
            yield info


def _installed_path(info: zipfile.ZipInfo, name: str) -> str | None:
    """Return where a file is installed, None if it is not. Raises InvalidRequest."""
    path = info.filename
    pure = PurePosixPath(path)  # without parts for "." and a name of nothing
    clean = (
        not pure.is_absolute() and ".." not in pure.parts and "\\" not in path and ":" not in path and str(pure) == path
    )
    if not pure.parts or not clean or not path.isprintable() or len(path) > MAX_PATH:
        raise InvalidRequest(f"{name} has a file that leads out of its folder, or has an odd name: {path[:MAX_PATH]!r}")
    parts = pure.parts
    if parts[0].endswith(".data"):
        parts = parts[2:] if len(parts) > 2 and parts[1] in CODE_FOLDERS else ()
    if not parts or pure.suffix in LEFT_OUT or (parts[0].endswith(".dist-info") and parts[1:] not in _KEPT):
        return None
    top = parts[0].partition(".")[0]
    if top in GUEST_MODULES or top in RESERVED:
        raise InvalidRequest(f"{name} would hide the module {top!r} of the sandbox")
    return "/".join(parts)


_KEPT = tuple((kept,) for kept in KEPT_METADATA)


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, room: int, name: str) -> bytes:
    """Return a file. What an archive says of sizes is not believed."""
    if info.flag_bits & 1:
        raise InvalidRequest(f"{name} is encrypted")
    with archive.open(info) as file:
        content = file.read(room + 1)
    if len(content) > room:
        raise _too_much(f"more than {MAX_BYTES} bytes in {name} alone", "package_bytes", MAX_BYTES)
    return content
