"""The files that a process with models may use: what its libraries need of the system, its caches, and what its order names.

Not in the list are the homes of people, except caches, the gateway's data and state folders with tokens and runs, /etc/shadow
and the like, block devices, and other places to write to than caches and the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from inferd_runtime.isolation.order import Access

SYSTEM = (
    "/bin", "/sbin", "/usr", "/opt", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/run/current-system",
    "/proc", "/sys", "/run/systemd/resolve", "/run/nvidia-persistenced",
    *(f"/etc/{name}" for name in (
        "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "ssl", "pki", "ca-certificates",
        "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "services", "protocols", "passwd", "group",
        "os-release", "machine-id", "mime.types", "nvidia", "OpenCL",
    )),
)  # fmt: skip
"""Programs and libraries of the system (Triton starts a compiler), what describes the machine, and how names are looked up."""
NETWORK_FILES = (
    "/run/systemd/resolve",
    *(f"/etc/{name}" for name in (
        "ssl", "pki", "ca-certificates", "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "services",
        "protocols",
    )),
    "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/lib/ssl", "/etc/ld.so.cache", "/lib", "/lib64",
    "/usr/lib", "/usr/lib64",
)  # fmt: skip
"""How names are looked up and certificates verified, with the libraries for it."""
DEVICE_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
DEVICES = ("null", "zero", "full", "random", "urandom", "shm")
ACCELERATORS = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd", "dxg", "infiniband/*")
"""Of /dev."""
CACHES = (".cache",)
ACCELERATOR_CACHES = (".triton", ".nv")
"""Of the home folder: made here, because the process can make no other folder there."""
CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR", "TRITON_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
)  # fmt: skip
FILE_VARIABLES = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_HOME", "CUDA_PATH")


def runnable(access: Access, python: list[str]) -> list[str]:
    """Return what may be read, and run: the system, ``python``'s folders, libraries that the environment names, models."""
    named = [os.environ[name] for name in FILE_VARIABLES if os.environ.get(name)]
    libraries = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return _found([*SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, *python, *libraries, *named], access.read)


def writable(access: Access) -> list[str]:
    """Return what may be read, written, made and removed. Folders of the order, and caches that variables name, are made here."""
    named = [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
    accelerators = _of_dev(ACCELERATORS)
    own = [str(Path.home() / name) for name in CACHES + (ACCELERATOR_CACHES if accelerators else ())]
    for path in (*access.write, *named, *own):
        with contextlib.suppress(OSError):  # a home that is not there, or another's: its caches are not used then
            os.makedirs(path, mode=0o700)
    devices = [*_of_dev(DEVICES), *accelerators]
    return _found([tempfile.gettempdir(), *devices, *own, *named], access.write)


def _of_dev(names: tuple[str, ...]) -> list[str]:
    return [path for name in names for path in glob.glob(f"/dev/{name}")]


def model_access(paths: list[Path], caches: list[Path]) -> Access:
    """Return the access to models' files in these places, and where links in them lead, and to caches and other own folders."""
    read = [str(found) for path in paths if path.exists() for found in (path, *_linked(path))]
    return Access(read=tuple(dict.fromkeys(read)), write=tuple(map(str, caches)))


def _linked(path: Path) -> Iterator[Path]:
    """Yield where a path and its entries lead to."""
    yield path.resolve()
    if path.is_dir():
        yield from (entry.resolve() for entry in path.iterdir() if entry.is_symlink() and entry.exists())


def _found(paths: Iterable[str], named: Iterable[str] = ()) -> list[str]:
    """Return what there is of these; the root folder only where it is ``named``."""
    whole = [path for path in map(os.path.abspath, paths) if path != "/"]
    return [path for path in dict.fromkeys([*whole, *named]) if os.path.exists(path)]
