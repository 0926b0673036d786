"""The boundary around one job: whatever goes wrong inside ends that job and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inferd.protocol import InferdError, InternalError
from inferd_runtime.engine.plan import Job


@contextmanager
def job_boundary(job: Job) -> Iterator[None]:
    """Run work for a job; an exception becomes the job's error."""
    try:
        yield
    except InferdError as error:
        job.fail(error)
    except Exception as error:  # noqa: BLE001 - the engine serves others, too
        job.fail(InternalError(f"the engine failed on this request: {error!r}"))
