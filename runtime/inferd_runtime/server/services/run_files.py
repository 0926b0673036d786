"""``file.*``, and what launchers ask for over HTTP: files between programs and their launchers, kept as long as their runs.

A file's room is taken when it is announced, and its bytes come in order, in pieces: nobody holds more than one of them in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from inferd.protocol import Done, EndOfMessages, InvalidRequest, LimitExceeded, NotFound, ProgramError, Unavailable
from inferd.protocol.files import (
    MAX_PIECE,
    BeginFile,
    FileBegun,
    FileHead,
    FilePiece,
    ReadFile,
    ReceiveFile,
    WriteFile,
    check_file,
)
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.run_file_folder import (
    KEPT,
    WholeFile,
    append_whole,
    kept_folder,
    move_runs,
    names_in,
    note_whole,
    remove_runs,
    temporary_folder,
    whole_files,
)
from inferd_runtime.server.services.table import Handed, Handler
from inferd_runtime.server.supervisor.runs import Run

MAX_RUN_BYTES = 256 << 20
"""Of the files of one run, both ways."""
MAX_RUN_FILES = 256
MAX_TENANT_FILE_BYTES = 1 << 30
"""Of all of a tenant's runs. What runs that are over have sent makes room, oldest first."""
MAX_TENANT_RUNS = 256
"""Runs with files, of one tenant; of those that are over the oldest go first."""
LAUNCHER = 0
EARLIER = -1
"""Instead of an attempt's number: one of an earlier server's."""
T = TypeVar("T")
log = logging.getLogger("inferd.runs")


@dataclass(eq=False)
class KeptFile:
    """A file on its way, or whole once ``sha256`` is set."""

    number: int
    name: str
    media_type: str
    size: int
    path: Path
    sender: int
    """The attempt of the run that sends it; ``LAUNCHER``."""
    sha256: str = ""
    written: int = 0
    digest: Any = field(default_factory=hashlib.sha256, repr=False)
    turn: anyio.Lock = field(default_factory=anyio.Lock, repr=False)

    @classmethod
    def of(cls, whole: WholeFile, folder: Path) -> KeptFile:
        """Return a file that another server has kept."""
        sender = EARLIER if whole.by_program else LAUNCHER
        path = folder / str(whole.number)
        return cls(whole.number, whole.name, whole.media_type, whole.size, path, sender, whole.sha256, whole.size)

    def noted(self, tenant: str) -> WholeFile:
        """Return what is kept of it, once all bytes are there."""
        by_program, digest = self.sender != LAUNCHER, self.digest.hexdigest()
        return WholeFile(tenant, self.number, self.name, self.media_type, self.size, digest, by_program)

    def head(self) -> FileHead:
        """Return what is told of it."""
        return FileHead(self.number, self.name, self.media_type, self.size, self.sha256)


class FilesOfRun:
    """The files of one run, which it outlives. Pure state."""

    def __init__(self, tenant: str, kept: Iterable[KeptFile] = ()) -> None:
        self.tenant = tenant
        self.bytes = 0
        self.files: dict[int, KeptFile] = {}
        self.sent: list[KeptFile] = []
        """By the program."""
        self.unread: deque[KeptFile] = deque()
        self._inputs: list[KeptFile] = []
        self._attempt = LAUNCHER
        self._said = self._next = 0
        for file in kept:
            self.files[file.number] = file
            self.bytes += file.size
            self._next = max(self._next, file.number + 1)
            (self._inputs if file.sender == LAUNCHER else self.sent).append(file)
        self.unread.extend(self._inputs)

    def check_room(self, size: int) -> None:
        """Raise LimitExceeded if one more file, of so many bytes, is too much for the run."""
        if len(self.files) >= MAX_RUN_FILES:
            text = f"{MAX_RUN_FILES} files of the run are there already"
            raise LimitExceeded(text, limit="run_files", value=MAX_RUN_FILES, raise_with="fewer files")
        if self.bytes + size > MAX_RUN_BYTES:
            text = f"the files of a run may have {MAX_RUN_BYTES} bytes together"
            raise LimitExceeded(text, limit="run_file_bytes", value=MAX_RUN_BYTES, raise_with="several runs")

    def begin(self, folder: Path, begun: BeginFile, sender: int) -> KeptFile:
        """Note a file that is announced."""
        number, self._next = self._next, self._next + 1
        path = folder / str(number)
        self.files[number] = file = KeptFile(number, begun.name, begun.media_type, begun.size, path, sender)
        self.bytes += begun.size
        return file

    def enter(self, attempt: int) -> None:
        """Note which attempt runs now: a new one gets the launcher's files again, and says again what it has said."""
        if self._attempt != attempt:
            self._attempt, self._said = attempt, 0
            self.unread = deque(self._inputs)

    def completed(self, file: KeptFile) -> bool:
        """Note that all of a file is there. Returns False for one that an earlier attempt has sent. Raises ProgramError if that
        was another one.
        """
        file.sha256 = file.digest.hexdigest()
        if file.sender == LAUNCHER:
            self._inputs.append(file)
            self.unread.append(file)
            return True
        self._said += 1
        if self._said > len(self.sent):
            self.sent.append(file)
            return True
        before = self.sent[self._said - 1]
        if (before.name, before.sha256) != (file.name, file.sha256):
            raise ProgramError(
                "the run was started again after a crash, and sent another file: it is not safe to retry"
            )
        return False

    def forget(self, file: KeptFile) -> None:
        """Drop a file."""
        if self.files.pop(file.number, None) is not None:
            self.bytes -= file.size

    def find(self, number: int, sender: int, *, whole: bool) -> KeptFile:
        """Return a file that this side sends, or with ``whole`` one that it may read. Raises NotFound."""
        file = self.files.get(number)
        own = file is not None and file.sender == sender
        if file is None or own is whole or (whole and not file.sha256):
            raise NotFound(f"the run has no file {number} for that")
        return file


class RunFileStore:
    """The files of all runs, by run in a folder. Belongs to one event loop.

    ``keeps``: they outlive the server, as their runs do; else they go with it. ``is_over``: whether a run, by its id, is.
    """

    def __init__(self, parent: Path, is_over: Callable[[str], bool], *, keeps: bool = False) -> None:
        self._parent = parent
        self._is_over = is_over
        self._keeps_all = keeps
        self._folder: Path | None = None
        self._runs: dict[str, FilesOfRun] = {}
        self._gone: list[str] = []
        self._making = anyio.Lock()
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def close(self) -> None:
        """Remove all files that are not to be kept."""
        if self._folder is not None and not self._keeps_all:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def load(self, known: Callable[[list[str]], Awaitable[set[str]]]) -> None:
        """Take over what the last server has kept, except runs that are not ``known`` any more. A failure is only reported."""
        if not self._keeps_all or not (self._parent / KEPT).is_dir():
            return
        try:
            folder = await self._place()
            names = await _on_disk(partial(names_in, folder))
            kept = await known(names)
            await _on_disk(partial(remove_runs, folder, [name for name in names if name not in kept]))
            await self._read([name for name in names if name in kept])
        except Unavailable as error:
            log.error("files of runs: %s", error.message)

    async def take_over(self, parent: Path) -> None:
        """Take the files of a server that has ended, whose data folder was ``parent``. Raises Unavailable."""
        if self._keeps_all and (parent / KEPT).is_dir():
            await self._read(await _on_disk(partial(move_runs, parent / KEPT, await self._place())))

    async def _read(self, names: list[str]) -> None:
        for name in names:
            folder = await self._place() / name
            found = await _on_disk(partial(whole_files, folder))
            if not found:
                await self._remove_runs([name])
            elif name not in self._runs:
                self._runs[name] = FilesOfRun(found[0].tenant, [KeptFile.of(file, folder) for file in found])

    def forget(self, names: Sequence[str]) -> None:
        """Forget the files of runs whose records are gone; :meth:`sweep` removes them."""
        self._gone += [name for name in names if self._runs.pop(name, None) is not None]

    async def sweep(self) -> None:
        """Remove what was forgotten. What cannot be removed is left to the next server, which does not know of it."""
        gone, self._gone = self._gone, []
        with contextlib.suppress(Unavailable):
            await self._remove_runs(gone)

    async def _place(self) -> Path:
        """Return the folder, which is made first if it has to be."""
        async with self._making:
            if self._folder is None:
                make = kept_folder if self._keeps_all else temporary_folder
                self._folder = await _on_disk(partial(make, self._parent))
        return self._folder

    def of(self, run_id: str, tenant: str) -> FilesOfRun | None:
        """Return a run's files; None if there are none, or no more."""
        found = self._runs.get(run_id)
        return found if found is not None and found.tenant == tenant else None

    async def begin(self, run: Run, begun: BeginFile, sender: int) -> KeptFile:
        """Take room for a file. Raises InvalidRequest, LimitExceeded, Unavailable."""
        check_file(begun.name, begun.media_type, begun.size)
        if sender == LAUNCHER:
            run.check_takes_messages()
        folder = await self._place() / run.id
        files = self._runs.get(run.id) or FilesOfRun(run.tenant)
        files.check_room(begun.size)
        gone = self._too_many(run, begun.size)
        self._runs[run.id] = files
        if sender != LAUNCHER:
            files.enter(sender)
        file = files.begin(folder, begun, sender)
        for name in gone:
            del self._runs[name]
        await self._remove_runs(gone)
        return file

    async def write(self, run: Run, sender: int, piece: WriteFile) -> bool:
        """Take the next bytes of a file; returns whether it is whole. Bytes that came before may come again."""
        files = self._of(run)
        file = files.find(piece.file, sender, whole=False)
        async with file.turn:
            came_before = 0 <= piece.offset < piece.offset + len(piece.data) <= file.written
            if not (file.sha256 or came_before):
                await self._take(run, file, piece)
            if file.written == file.size and not file.sha256 and self._keeps(run, file):
                await self._complete(run, files, file)  # again, where a full disk took all bytes and not the note of it
        return bool(file.sha256)

    async def _take(self, run: Run, file: KeptFile, piece: WriteFile) -> None:
        end = piece.offset + len(piece.data)
        if piece.offset != file.written or end > file.size or len(piece.data) > MAX_PIECE:
            raise InvalidRequest(f"byte {file.written} of {file.size} of the file is next, {MAX_PIECE} at most")
        try:
            await self._in_turn(run.tenant, partial(_append, file.path, piece.data))
        finally:
            gone = not self._keeps(run, file)
            if gone:  # it was forgotten meanwhile, and may be on disk again
                await _remove_files([file.path])
        if gone:
            raise NotFound(f"the run has no file {piece.file} any more")
        file.digest.update(piece.data)
        file.written = end

    async def _complete(self, run: Run, files: FilesOfRun, file: KeptFile) -> None:
        if self._keeps_all:
            with anyio.CancelScope(shield=True):  # its bytes are there, and are not asked for again
                await _on_disk(partial(note_whole, file.path.parent, file.noted(run.tenant)))
        if files.completed(file):
            if file.sender != LAUNCHER:
                run.filed(msgspec.json.encode(file.head()).decode())
        else:
            await self._remove(files, file)
        run.changed.wake()

    async def read(self, files: FilesOfRun, reader: int, number: int, offset: int) -> FilePiece:
        """Return bytes of a file that the other side has sent. Raises NotFound, InvalidRequest and Unavailable."""
        file = files.find(number, reader, whole=True)
        if not 0 <= offset <= file.size:
            raise InvalidRequest(f"offset must be in 0..{file.size}, not {offset}")
        data = await self._in_turn(files.tenant, partial(_slice, file.path, offset)) if offset < file.size else b""
        return FilePiece(data, offset + len(data) >= file.size)

    async def _in_turn(self, tenant: str, work: Callable[[], T]) -> T:
        """Do some work on the disk. A tenant has one thread of those that all share. Raises Unavailable."""
        async with self._turns[tenant]:
            return await _on_disk(work)

    def _keeps(self, run: Run, file: KeptFile) -> bool:
        files = self._runs.get(run.id)
        return files is not None and files.files.get(file.number) is file

    def _of(self, run: Run) -> FilesOfRun:
        found = self._runs.get(run.id)
        if found is None:
            raise NotFound(f"no file of {run.id} was begun")
        return found

    async def drop_unfinished(self, run_id: str, attempt: int) -> None:
        """Remove what an attempt that is over has begun and not finished."""
        files = self._runs.get(run_id)
        for file in [] if files is None else list(files.files.values()):
            if files is not None and file.sender == attempt and not file.sha256:
                await self._remove(files, file)

    def _too_many(self, run: Run, size: int) -> list[str]:
        """Return the runs that are over whose files leave for a file of so many bytes. Raises LimitExceeded; changes nothing."""
        own = {name: files for name, files in self._runs.items() if files.tenant == run.tenant}
        held, count, gone = sum(files.bytes for files in own.values()), len(own | {run.id: None}), list[str]()
        for name, files in own.items():
            if held + size <= MAX_TENANT_FILE_BYTES and count <= MAX_TENANT_RUNS:
                break
            if self._is_over(name):
                held, count = held - files.bytes, count - 1
                gone.append(name)
        if count > MAX_TENANT_RUNS:
            text = f"{MAX_TENANT_RUNS} runs of the tenant that are not over have files already"
            raise LimitExceeded(
                text, limit="tenant_file_runs", value=MAX_TENANT_RUNS, raise_with="fewer runs at a time"
            )
        if held + size > MAX_TENANT_FILE_BYTES:
            text = f"files of the tenant's runs that are not over have {held} bytes"
            raise LimitExceeded(
                text, limit="tenant_file_bytes", value=MAX_TENANT_FILE_BYTES, raise_with="fewer runs at a time"
            )
        return gone

    async def _remove(self, files: FilesOfRun, file: KeptFile) -> None:
        files.forget(file)
        await _remove_files([file.path])

    async def _remove_runs(self, names: Sequence[str]) -> None:
        if names:
            folder = await self._place()
            with anyio.CancelScope(shield=True):
                await _on_disk(partial(remove_runs, folder, names))


class FileService:
    """The family ``file``."""

    def __init__(self, store: RunFileStore, start: Callable[..., object]) -> None:
        self._store = store
        self._start = start

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""
        return {
            "file.begin": self._begin,
            "file.write": self._write,
            "file.receive": self._receive,
            "file.read": self._read,
        }

    def closed(self, caller: Caller) -> None:
        """Forget what an attempt has begun and not finished."""
        if caller.run is not None:
            self._start(self._store.drop_unfinished, caller.run.id, caller.run.attempts)

    async def _begin(self, caller: Caller, request: BeginFile) -> FileBegun:
        run = _run(caller)
        return FileBegun((await self._store.begin(run, request, run.attempts)).number)

    async def _write(self, caller: Caller, request: WriteFile) -> Done:
        run = _run(caller)
        await self._store.write(run, run.attempts, request)
        return Done()

    async def _receive(self, caller: Caller, request: ReceiveFile) -> Handed:
        run, told = _run(caller), False
        while True:
            files = self._store.of(run.id, run.tenant)
            if files is not None:
                files.enter(run.attempts)
                if files.unread:
                    file = files.unread.popleft()
                    return Handed(file.head(), undo=partial(files.unread.appendleft, file))
            if run.messages_ended:
                raise EndOfMessages("the launcher sends no more files")
            if not told:
                run.awaits_file()
                told = True
            await run.changed.wait()

    async def _read(self, caller: Caller, request: ReadFile) -> FilePiece:
        run = _run(caller)
        files = self._store.of(run.id, run.tenant)
        if files is None:
            raise NotFound("the run has no files")
        return await self._store.read(files, run.attempts, request.file, request.offset)


def _run(caller: Caller) -> Run:
    if caller.run is None:
        raise InvalidRequest("files are for launched programs: a script has nobody at its other side")
    return caller.run


async def _on_disk(work: Callable[[], T]) -> T:
    """Do some work in a thread. Raises Unavailable where the disk does not take part."""
    try:
        return await anyio.to_thread.run_sync(work)
    except OSError as error:
        raise Unavailable(f"the file cannot be kept: {error.strerror or type(error).__name__}") from None


async def _remove_files(paths: Sequence[Path]) -> None:
    """Remove files that nothing refers to any more, also where the task that asked for it is cancelled. What a broken disk does
    not let go of is left to the next server: nobody waits for this who could be told.
    """
    if paths:
        with anyio.CancelScope(shield=True), contextlib.suppress(Unavailable):
            await _on_disk(partial(_unlink, paths))


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    append_whole(path, data)


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _slice(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(MAX_PIECE)
