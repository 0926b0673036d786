"""The client without ``await``: an event loop in a thread of its own does the work (anyio's blocking portal)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from inferd.client.client import DEFAULT_SERVER, PATIENCE_S, Client, ServerProgram, Sources
from inferd.client.event_cursor import StreamEvent
from inferd.client.http_link import CLOSED
from inferd.client.run_handle import RunHandle
from inferd.protocol import InvalidRequest
from inferd.protocol.files import ANY_TYPE, FileHead

if TYPE_CHECKING:
    from inferd.client.brought_servers import BroughtServers

T = TypeVar("T")


class _Waiting:
    """Waits in this thread for what happens in the portal's."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what a coroutine returns. An interrupt cancels it."""
        try:
            future = self.portal.start_task_soon(function)
        except RuntimeError as error:  # the portal's thread has ended
            raise InvalidRequest(CLOSED) from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def each(self, stream: AsyncGenerator[T]) -> Iterator[T]:
        """Yield what an async generator yields; it is closed when this is."""
        while True:
            try:
                item = self.call(stream.__anext__)
            except StopAsyncIteration:
                return
            try:
                yield item
            except BaseException:
                self.call(stream.aclose)
                raise


class SyncRunHandle:
    """See :class:`~inferd.client.run_handle.RunHandle`: the same, blocking."""

    def __init__(self, waiting: _Waiting, run: RunHandle) -> None:
        self._waiting = waiting
        self._run = run
        self.id = run.id

    @property
    def record(self) -> dict[str, Any]:
        """The run as the server showed it last."""
        return self._run.record

    def refresh(self) -> dict[str, Any]:
        """Ask for the run as it is now, and return it."""
        return self._waiting.call(self._run.refresh)

    def events(self, start: int = 0) -> Iterator[StreamEvent]:
        """Yield the run's events from index ``start`` on."""
        return self._waiting.each(self._run.events(start))

    def messages(self, start: int = 0) -> Iterator[Any]:
        """Yield the values that the program sends. Raises the run's error."""
        return self._waiting.each(self._run.messages(start))

    def output(self, stream: str = "stdout", start: int = 0) -> Iterator[str]:
        """Yield the text that the program writes. Raises the run's error."""
        return self._waiting.each(self._run.output(stream, start))

    def logs(self) -> list[StreamEvent]:
        """Return the events so far that are still kept."""
        return self._waiting.call(self._run.logs)

    def result(self) -> Any:
        """Wait until the run is over, and return its result. Raises the error that it ended with."""
        return self._waiting.call(self._run.result)

    def send(self, value: Any) -> None:
        """Hand a value to the program's ``session.receive``."""
        self._waiting.call(lambda: self._run.send(value))

    def end_messages(self) -> None:
        """Tell the program that there are no more messages."""
        self._waiting.call(self._run.end_messages)

    def files(self) -> list[FileHead]:
        """Return the files that the program has sent."""
        return self._waiting.call(self._run.files)

    def read_file(self, file: int) -> Iterator[bytes]:
        """Yield the bytes of one of :meth:`files`."""
        return self._waiting.each(self._run.read_file(file))

    def save_file(self, file: FileHead, folder: str | Path) -> Path:
        """Write one of :meth:`files` into a folder; nothing is overwritten."""
        return self._waiting.call(lambda: self._run.save_file(file, folder))

    def send_file(self, path: str | Path, *, name: str = "", media_type: str = ANY_TYPE) -> None:
        """Hand a file to the program's ``session.receive_file``."""
        self._waiting.call(lambda: self._run.send_file(path, name=name, media_type=media_type))

    def cancel(self) -> None:
        """End the run."""
        self._waiting.call(self._run.cancel)


class SyncClient:
    """See :class:`~inferd.client.client.Client`: the same, blocking. A context manager, entered once."""

    def __init__(
        self,
        url: str = DEFAULT_SERVER,
        token: str | None = None,
        *,
        ca: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client = Client(url, token, ca=ca, patience_s=patience_s)
        self._stack = ExitStack()
        self._entered: _Waiting | None = None

    def __enter__(self) -> SyncClient:
        if self._entered is not None:
            raise InvalidRequest("a client is entered once: make another one")
        portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(portal.wrap_async_context_manager(self._client))
        self._entered = _Waiting(portal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def _waiting(self) -> _Waiting:
        if self._entered is None:
            raise InvalidRequest("not open: use `with SyncClient(...) as client:`")
        return self._entered

    def upload(self, program: Sources, *, name: str = "", version: str = "") -> ServerProgram:
        """Upload a program."""
        return self._waiting.call(lambda: self._client.upload(program, name=name, version=version))

    def launch(
        self, program: str | ServerProgram, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> SyncRunHandle:
        """Start a run; ``options`` are those of the async client."""
        run = self._waiting.call(lambda: self._client.launch(program, arguments, **options))
        return SyncRunHandle(self._waiting, run)

    def mcp(self, servers: str | Path, *, key: str = "") -> AbstractContextManager[BroughtServers]:
        """Bring the servers of tools of a file along while the body runs."""
        return self._waiting.portal.wrap_async_context_manager(self._client.mcp(servers, key=key))

    def attach(self, run: str) -> SyncRunHandle:
        """Return a run by its id."""
        return SyncRunHandle(self._waiting, self._waiting.call(lambda: self._client.attach(run)))

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are kept, newest first."""
        return self._waiting.call(self._client.runs)

    def programs(self) -> list[dict[str, Any]]:
        """Return the programs that are kept, newest first."""
        return self._waiting.call(self._client.programs)

    def program(self, reference: str) -> dict[str, Any]:
        """Return a program with its interface."""
        return self._waiting.call(lambda: self._client.program(reference))

    def remove(self, reference: str) -> int:
        """Remove a program's version, or all of them."""
        return self._waiting.call(lambda: self._client.remove(reference))
