"""Requests that are refused by the name of a field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.server.dialects.reading import invalid


def refusal(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """Return the error of a field, whose message begins with the field's path; see :func:`invalid`."""
    return invalid(param, f"{param}: {message}", code)


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Name the field in whatever request error the block raises."""
    try:
        yield
    except (InvalidRequest, LimitExceeded) as error:
        raise refusal(param, error.message) from None
