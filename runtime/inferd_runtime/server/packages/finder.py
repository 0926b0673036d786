"""Finds the packages of uploads: each question in a process of its own, each answer kept for the next that asks the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from inferd.protocol import Forbidden, InvalidRequest, LimitExceeded, Unavailable
from inferd_runtime.file_cache import CacheEntry, drop_oldest, private_folder
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Access, Launch, ResourceLimits
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.packages.messages import ANSWER_FILE, Answer, Packages, Question
from inferd_runtime.server.packages.requirements import GUEST_PYTHON, checked_requirements
from inferd_runtime.server.processes.child_process import ChildProcess
from inferd_runtime.server.processes.priority import set_behind
from inferd_runtime.settings.settings import Settings

MODULE = "inferd_runtime.server.packages.finder_child"
PROCESSES = 2
MOST_SECONDS = 120.0
SHARED_SECONDS = 30.0
"""Instead, while another tenant waits for a place: a few that look for what is slow to find do not hold up the others."""
CPU_SECONDS = 60
MEMORY_BYTES = 1 << 30
KEPT_ANSWERS = 256
KEPT_BYTES = 1 << 30
MAX_ANSWER = 32 << 20
log = logging.getLogger("inferd.packages")


class PackageFinder:
    """Belongs to one event loop. ``folder`` keeps the answers."""

    def __init__(self, folder: Path, *, allowed: bool) -> None:
        self._folder = folder
        self._allowed = allowed
        self._places = anyio.CapacityLimiter(PROCESSES)
        self._searches: dict[anyio.CancelScope, float] = {}
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def find(self, requirements: tuple[str, ...], tenant: str = "") -> Packages:
        """Return the packages that meet requirements, those that were found for the same ones before if there are any. One search
        of a tenant goes on at a time.

        Raises Forbidden where the operator allows none, InvalidRequest for what the index does not have or the sandbox cannot
        run, LimitExceeded for too much, Unavailable when the index does not answer.
        """
        if not self._allowed:
            raise Forbidden(
                f"this server gives programs no dependencies ({', '.join(requirements)}): see its setting packages"
            )
        key = hashlib.sha256(json.dumps([GUEST_PYTHON, *requirements]).encode()).hexdigest()
        known = await anyio.to_thread.run_sync(self._kept, key)  # which needs no place: those may be taken for minutes
        if known is not None:
            return known
        async with self._turns[tenant]:
            if not self._places.available_tokens:
                for search, started in self._searches.items():
                    search.deadline = min(search.deadline, started + SHARED_SECONDS)
            async with self._places:
                packages = await self._ask(requirements)
                await anyio.to_thread.run_sync(self._keep, key, packages)
                return packages

    async def _ask(self, requirements: tuple[str, ...]) -> Packages:
        async with _temporary_folder() as folder:
            launch = Launch(
                MODULE, ChildKind.INSTALLER, settings=Question(requirements, GUEST_PYTHON, folder),
                access=Access(write=(folder,)), limits=ResourceLimits(cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES),
            )  # fmt: skip
            child = await ChildProcess.start("packages", launch)
            set_behind(child.pid, True)
            try:
                await self._ended(child)
            finally:
                with anyio.CancelScope(shield=True):
                    await child.stop(0.0)
            return await anyio.to_thread.run_sync(_answer, Path(folder, ANSWER_FILE), child.tail)

    async def _ended(self, child: ChildProcess) -> None:
        """Wait for the end of a process. Raises LimitExceeded once its time is over."""
        started = anyio.current_time()
        most = SHARED_SECONDS if self._places.statistics().tasks_waiting else MOST_SECONDS
        with anyio.move_on_after(most) as search:
            self._searches[search] = started
            try:
                await child.wait()
            finally:
                del self._searches[search]
        if child.alive:
            seconds = round(search.deadline - started, 1)
            raise LimitExceeded(
                f"finding the dependencies takes more than {seconds:g} s", limit="packages_s", value=seconds,
                raise_with="fewer or more exact dependencies, or when fewer others look for some",
            )  # fmt: skip

    def _kept(self, key: str) -> Packages | None:
        entry = CacheEntry(self._folder / f"{key}.json")
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # another search has just dropped it
            if entry.is_whole():
                entry.touch()
                return msgspec.json.decode(entry.path.read_bytes(), type=Packages)
        return None

    def _keep(self, key: str, packages: Packages) -> None:
        private_folder(self._folder)
        try:
            CacheEntry(self._folder / f"{key}.json").put(lambda path: _write(path, packages))
            drop_oldest(self._folder, "*.json", KEPT_ANSWERS, KEPT_BYTES)
        except OSError as error:  # the disk is full, or another search has dropped what was to be dropped
            log.warning("packages that were found are not kept: %s", error)


async def with_packages(
    bundle: Bundle, dependencies: Iterable[str], finder: PackageFinder | None, tenant: str = ""
) -> Bundle:
    """Return a program with the packages that it depends on. Raises what checking and :meth:`PackageFinder.find` raise."""
    wanted = checked_requirements(dependencies)
    if not wanted:
        return bundle
    if finder is None:
        raise InvalidRequest("dependencies are found where programs are uploaded, which is not here")
    found = await finder.find(wanted, tenant)
    return msgspec.structs.replace(bundle, packages=found.files, lock=found.lock)


def package_finder(settings: Settings) -> PackageFinder:
    """Return the finder that a server with these settings has."""
    return PackageFinder(settings.data_dir / "packages", allowed=settings.packages == "pure")


@asynccontextmanager
async def _temporary_folder() -> AsyncIterator[str]:
    """Make a folder and remove it at the end, in threads: a search leaves as many files as its packages have dependencies."""
    folder = await anyio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="inferd-packages-"))
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


def _write(path: Path, packages: Packages) -> None:
    path.write_bytes(msgspec.json.encode(packages))


def _answer(file: Path, printed: str) -> Packages:
    try:
        with file.open("rb") as handle:
            answer = msgspec.json.decode(handle.read(MAX_ANSWER), type=Answer)
    except (OSError, msgspec.MsgspecError):
        log.warning("the process that finds dependencies ended without an answer: %s", printed)
        raise Unavailable("the process that finds dependencies ended without an answer") from None
    if answer.packages is None:
        assert answer.error is not None
        raise answer.error.to_exception()
    return answer.packages
