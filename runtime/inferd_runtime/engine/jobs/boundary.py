"""The boundary around one job: an exception inside ends that job and no other."""

from __future__ import annotations

from types import TracebackType

from inferd.protocol import ConstraintError, InferdError, InternalError, InvalidRequest
from inferd_grammar import GrammarFailure
from inferd_grammar.errors import DeadEnd
from inferd_runtime.engine.job import Job


def typed_error(error: Exception) -> InferdError:
    """Return the error to report for an exception: itself if it is typed; a ConstraintError for a grammar that has come to a dead
    end, or that is too much for its library; an InvalidRequest for what is nested too deeply. From Python 3.12 on messages are
    decoded that are nested deeper than what works on them can follow.
    """
    if isinstance(error, InferdError):
        return error
    if isinstance(error, RecursionError):
        return InvalidRequest("the request is nested too deeply")
    if isinstance(error, DeadEnd):
        return ConstraintError(f"the constraint leaves no token to go on with: {error}")
    if isinstance(error, GrammarFailure) and error.is_limit:
        return ConstraintError(f"the constraint is too complex to go on with: {error}")
    if isinstance(error, GrammarFailure):
        return InternalError(f"the grammar matcher failed: {error}")
    return InternalError(f"the engine failed on this request: {error!r}")


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
        if isinstance(error, FloatingPointError) and self._job.context.adapter:
            self._job.fail(InvalidRequest(f"{error}: the adapter's weights are too large for this model"))
        elif isinstance(error, Exception):
            self._job.fail(typed_error(error))
        return error is None or isinstance(error, Exception)
