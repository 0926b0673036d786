"""C sources of this package as libraries: compiled once for this machine's processor, and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, code_folder, drop_oldest, processor

logger = logging.getLogger(__name__)
COMPILER = "cc"
OPTIONS = ("-O2", "-march=native", "-fopenmp", "-shared", "-fPIC")
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
NEEDED = frozenset({"avx2", "fma", "f16c"})
"""What the sources ask of a processor; they do with AVX-512 what is faster with it."""
SECONDS = 120.0
MOST_KEPT = 24


def hindrance() -> str:
    """Return what keeps libraries from being compiled on this machine; "" if nothing is known that does."""
    if not NEEDED.issubset(processor().split()):
        return "the processor has no AVX2"
    return "" if shutil.which(COMPILER) else f"there is no {COMPILER}"


def source_digest(source: Path, defines: tuple[str, ...] = ()) -> str:
    """Return a hash of a source and of all that its library depends on."""
    texts = [path.read_text() for path in (source, *HEADERS)]
    about = (texts, processor(), OPTIONS + defines)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def compiled(source: Path, folder: Path | None = None, defines: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """Return a source's library; None, with the reason in the log, where it cannot be had.

    ``folder`` None: in the user's cache folder. ``defines``: further options of the compiler. OpenMP is PyTorch's own, which has
    to be loaded: it is found by its name.
    """
    if not NEEDED.issubset(processor().split()):
        logger.info("%s is not compiled: %s", source.name, hindrance())
        return None
    try:
        entry = _kept(source, folder or cache_folder() / "native", defines)
        return ctypes.CDLL(str(entry.path))
    except (OSError, Unavailable, subprocess.SubprocessError) as error:
        logger.info("%s is not compiled: %s", source.name, error)
        return None


def _kept(source: Path, folder: Path, defines: tuple[str, ...]) -> CacheEntry:
    """Return the library's file, made if it is not there. Raises what compiling and writing raise."""
    entry = CacheEntry(code_folder(folder) / f"{source_digest(source, defines)}.so")
    if not entry.is_whole():
        compiler = shutil.which(COMPILER)
        if compiler is None:
            raise FileNotFoundError(hindrance())
        with TemporaryDirectory(prefix="inferd-cc-") as made:
            # Into a folder of its own, because what has failed leaves parts behind.
            library = Path(made) / "library.so"
            command = [compiler, *OPTIONS, *defines, "-o", str(library), str(source)]
            subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
            entry.put(lambda path: _copy(library, path))
        drop_oldest(folder, "*.so", MOST_KEPT)
    entry.touch()
    return entry


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
