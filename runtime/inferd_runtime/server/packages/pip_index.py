"""The operator's package index, asked with pip: its settings and mirrors hold as they do for ``pip download``. Not its cache, in
which all that tenants name would stay for ever.

Only wheels are kept, and nothing of a package is run: pip would build what a package's metadata names by a URL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from inferd.protocol import InvalidRequest, LimitExceeded, Unavailable
from inferd_runtime.server.packages.wheels import NativeWheel

PURE = ("--implementation", "py", "--abi", "none", "--platform", "any")
PLATFORMS = ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "any")
WITHOUT_NATIVE = frozenset({"markupsafe", "msgpack", "pyyaml", "wrapt"})
"""Packages that do the same in Python where their compiled part is missing, and have no wheel without it."""
INSTEAD = {
    "aiohttp": "inferd.http", "httpx": "inferd.http", "requests": "inferd.http", "numpy": "lists and the module array",
    "orjson": "the module json", "pydantic-core": "dataclasses, TypedDict, or the dependency 'pydantic<2'",
    "regex": "the module re", "ujson": "the module json",
    **dict.fromkeys(("sentencepiece", "tiktoken", "tokenizers"), "the tokenizer of inferd.Model"),
}  # fmt: skip
PURE_ENDING = "-any.whl"
MAX_ERROR = 1000
MAX_DISK = 512 << 20
"""Bytes of all files of a search: wheels that pip looks into and does not choose are among them."""
BLOCK = 512
"""Bytes that ``stat`` counts in."""
LOOK_SECONDS = 0.2
PIP = str(Path(__file__).with_name("pip_alone.py"))


class PipFailed(InvalidRequest):
    """pip found no packages that fit. The message is what it printed."""


@dataclass(frozen=True)
class Found:
    """A wheel that pip chose."""

    name: str
    version: str
    file: str

    @property
    def exact(self) -> str:
        """The requirement that it alone meets."""
        return f"{self.name}=={self.version}"


class PackageIndex:
    """Asks the index for wheels for one version of Python; they are put into ``folder``, where pip has all of its files."""

    def __init__(self, python: str, folder: Path, most_bytes: int = MAX_DISK) -> None:
        self._most_bytes = most_bytes
        self._for = ("--only-binary=:all:", "--python-version", python)
        self._native = (
            "--implementation",
            "cp",
            "--abi",
            f"cp{python.replace('.', '')}",
            "--abi",
            "abi3",
            "--abi",
            "none",
        )
        self._folder = folder

    def fetch(self, requirements: Iterable[str]) -> None:
        """Fetch wheels without compiled code that meet the requirements, and what those require.

        Raises NativeWheel, which names the packages, where there are others alone; PipFailed where there are none.
        """
        wanted = list(requirements)
        try:
            self._download(PURE, wanted)
        except PipFailed:
            self._fetch_one_by_one(self._choose(wanted))

    def _fetch_one_by_one(self, chosen: list[Found]) -> None:
        """Fetch what pip chose where compiled code is allowed, each in another form than that."""
        self._download(PURE, [one.exact for one in chosen if one.file.endswith(PURE_ENDING)], alone=True)
        refused = []
        for one in (one for one in chosen if not one.file.endswith(PURE_ENDING)):
            try:
                self._download(PURE, [one.exact], alone=True)
            except PipFailed:
                if one.name not in WITHOUT_NATIVE:
                    refused.append(one)
                else:
                    self._download(self._any_platform, [one.exact], alone=True)
        if refused:
            raise _refusal(refused)

    def _choose(self, requirements: list[str]) -> list[Found]:
        """Return what pip would install if compiled code could run."""
        report = self._folder / "report.json"
        target = ("--target", str(self._folder / "target"))
        self._pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *target, *self._any_platform,
                  *self._for, "--", *requirements)  # fmt: skip
        return [_found(entry) for entry in json.loads(report.read_text())["install"]]

    @property
    def _any_platform(self) -> tuple[str, ...]:
        return (*self._native, *(part for platform in PLATFORMS for part in ("--platform", platform)))

    def _download(self, platform: Iterable[str], requirements: list[str], *, alone: bool = False) -> None:
        if requirements:
            more = ("--no-deps",) if alone else ()
            self._pip("download", "--dest", str(self._folder), *more, *platform, *self._for, "--", *requirements)

    def _pip(self, command: str, *arguments: str) -> None:
        quiet = (
            "--quiet", "--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar", "off", "--no-cache-dir",
        )  # fmt: skip
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        with subprocess.Popen(
            [sys.executable, "-P", PIP, command, *quiet, *arguments], cwd=self._folder,
            env={**os.environ, "TMPDIR": str(temporary)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            printed = self._watched(process)
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            raise Unavailable(
                f"the search for dependencies was ended by {name}: try again, with fewer or more exact ones"
            )
        if process.returncode:
            raise PipFailed(_errors(printed.decode(errors="replace")))

    def _watched(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return what a process prints as errors, once it has ended. Raises LimitExceeded if its files take too much."""
        while True:
            try:
                return process.communicate(timeout=LOOK_SECONDS)[1]
            except subprocess.TimeoutExpired:
                if _bytes_in(self._folder) > self._most_bytes:
                    process.kill()
                    raise LimitExceeded(
                        f"finding the dependencies takes more than {self._most_bytes} bytes of files",
                        limit="packages_disk_bytes", value=self._most_bytes, raise_with="fewer or more exact dependencies",
                    ) from None  # fmt: skip


def _bytes_in(folder: Path) -> int:
    """Return the bytes that the files in a folder take on disk. They come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * BLOCK
    return total


def _found(entry: dict[str, Any]) -> Found:
    metadata, url = entry["metadata"], entry["download_info"]["url"]
    return Found(canonicalize_name(metadata["name"]), metadata["version"], url.rsplit("/", 1)[-1])


def _refusal(refused: list[Found]) -> NativeWheel:
    names = ", ".join(f"{one.name} {one.version}" for one in refused)
    instead = [f"{INSTEAD[one.name]} instead of {one.name}" for one in refused if one.name in INSTEAD]
    advice = (
        f": use {'; '.join(instead)}"
        if instead
        else ": use a package in Python alone, or do that part outside, as a tool"
    )
    return NativeWheel(f"these packages have compiled code, which the sandbox cannot run: {names}{advice}")


def _errors(printed: str) -> str:
    """Return what pip printed as errors, without its warnings about the operator's settings, and where it failed itself."""
    _, failed, trace = printed.rstrip().rpartition("Traceback (most recent call last):")
    if failed:  # only the error itself: the rest tells of the operator's folders
        printed = trace.rpartition("\n")[2]
    lines = [line.removeprefix("ERROR: ") for line in printed.splitlines() if not line.startswith("WARNING: ")]
    return f"the package index has nothing that fits: {' '.join(lines)[:MAX_ERROR]}"
