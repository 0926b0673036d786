"""The boundary around one job: an exception inside ends that job and no other."""

from __future__ import annotations

from types import TracebackType

from inferd.protocol import InferdError, InternalError
from inferd_runtime.engine.job import Job


class JobBoundary:
    """Context manager around work for one job: an exception inside becomes the job's error.

    A class and not a generator, because every row of every step passes through it.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, InferdError):
            self._job.fail(error)
        elif isinstance(error, Exception):
            self._job.fail(InternalError(f"the engine failed on this request: {error!r}"))
        return error is None or isinstance(error, Exception)
