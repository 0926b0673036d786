"""The error tree, by whose fault it is. ``code`` is the wire name; a subclass narrows its parent's code with a dot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from inferd.protocol.carrying import carriable_detail, cut


class InferdError(Exception):
    """Base of every error that the runtime reports. ``detail`` holds JSON values only."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail

    def to_wire(self) -> ErrorInfo:
        """The error as it is sent: see :meth:`ErrorInfo.carriable`."""
        return ErrorInfo(code=self.code, message=self.message, detail=self.detail).carriable()


class ProgramError(InferdError):
    """The program's own fault: it raised, or it returned something that cannot be sent. ``detail["traceback"]``."""

    code = "program"


class ProgramSyntaxError(ProgramError):
    """The program's source does not compile."""

    code = "program.syntax"


class ClientError(InferdError):
    """The caller asked for something that cannot be done as asked."""

    code = "client"


class InvalidRequest(ClientError):
    """An argument is out of range, of the wrong type, or not supported; the message names it."""

    code = "client.invalid"


class NotFound(ClientError):
    """No model, program, run or handle of that name."""

    code = "client.not_found"


class IdempotencyKeyReused(ClientError):
    """The ``Idempotency-Key`` of a launch stands for another launch already."""

    code = "client.idempotency_key"


class EndOfMessages(ClientError):
    """The launcher of the program sends no more messages, and none is left to receive."""

    code = "client.end_of_messages"


class Unauthorized(ClientError):
    """The token is missing or wrong."""

    code = "client.unauthorized"


class Forbidden(ClientError):
    """The token is good, but does not allow this."""

    code = "client.forbidden"


class ConstraintError(ClientError):
    """The schema, pattern or grammar is invalid or cannot be enforced; ``detail["pointer"]`` where it is known."""

    code = "client.constraint"


class ConstraintViolated(ConstraintError):
    """A finished text of a best_effort constraint is not valid. ``detail``: ``problem``, ``pointer`` (the place in the value),
    ``keyword`` and ``schema_pointer`` (what it does not hold; None and "" for a text that is not JSON).
    """

    code = "client.constraint.violated"


class SnapshotDamaged(ClientError):
    """The bytes of a saved or exported context are not what was written. A snapshot can still be deleted by name."""

    code = "client.snapshot_damaged"


class SnapshotForeign(ClientError):
    """A saved or exported context is of a model that is not served, or of another format; the message names both."""

    code = "client.snapshot_foreign"


class LimitExceeded(InferdError):
    """A limit was hit. ``detail`` names the limit, its value, and what raises it, which its text says, too."""

    code = "limit"

    def __init__(self, message: str, *, limit: str = "", value: float | None = None, raise_with: str = "") -> None:
        super().__init__(message, limit=limit, value=value, raise_with=raise_with)

    def __str__(self) -> str:
        helps = self.detail.get("raise_with")
        return f"{self.message} (what helps: {helps})" if helps else self.message


class Truncated(LimitExceeded):
    """The text was not complete when its tokens were used up, or cannot be within them."""

    code = "limit.truncated"


class Cancelled(InferdError):
    """Somebody stopped the run."""

    code = "cancelled"


class Unavailable(InferdError):
    """A process that the work needs is gone or not ready; the same call may succeed later."""

    code = "unavailable"


class InternalError(InferdError):
    """A bug in the runtime."""

    code = "internal"


ERRORS: dict[str, type[InferdError]] = {
    cls.code: cls
    for cls in (
        ProgramError, ProgramSyntaxError, ClientError, InvalidRequest, NotFound, IdempotencyKeyReused, EndOfMessages,
        Unauthorized, Forbidden, ConstraintError, ConstraintViolated, SnapshotDamaged, SnapshotForeign,
        LimitExceeded, Truncated, Cancelled, Unavailable, InternalError,
    )
}  # fmt: skip

MAX_CODE = 64


def known_code(code: str) -> str:
    """Return a code of the tree, or the nearest parent of it that is one; "" for a code that has none."""
    while code not in ERRORS and code:
        code = code.rpartition(".")[0]
    return code


@dataclass(frozen=True)
class ErrorInfo:
    """An error on the wire."""

    code: str
    message: str
    detail: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> ErrorInfo:
        """Return the error that a value, as it was received, stands for. Raises TypeError for what is none."""
        parts = [value[name] for name in ("code", "message", "detail")] if isinstance(value, dict) else []
        if list(map(type, parts)) != [str, str, dict]:
            raise TypeError(f"no error: {cut(repr(value), MAX_CODE)}")
        return cls(*parts)

    def carriable(self) -> ErrorInfo:
        """Return the error as every wire takes it, and of bounded size, whatever its message and detail hold."""
        return ErrorInfo(cut(self.code, MAX_CODE), cut(str(self.message)), carriable_detail(self.detail))

    def to_exception(self) -> InferdError:
        """The exception to raise; an unknown code falls back to the nearest parent that is known."""
        error = ERRORS.get(known_code(self.code), InternalError)(self.message)
        error.detail = dict(self.detail)
        return error
