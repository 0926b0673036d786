"""A server's answers, checked where they come in: what another server says, or one that lies, is one error."""

from __future__ import annotations

import json
from typing import Any

from inferd.protocol import ErrorInfo, InferdError, InternalError, reply_from_plain

NOTHING = type(None)
UPLOAD_TIMEOUT_S = 240.0
"""How long an upload is waited for: the server may look for its packages for two minutes, and for another upload's before."""
NOT_OURS = "that is not an inferd server's answer"
UNTRUSTED = ("self-signed certificate", "local issuer certificate")
"""What OpenSSL says of such a certificate."""


def untrusted(error: Exception) -> str:
    """Return what helps where nobody who is trusted has signed a server's certificate; "" for other errors."""
    signed = any(words in str(error) for words in UNTRUSTED)
    return "; for certificates of your own give the file of who signed them: ca= (--ca, INFERD_CA)" if signed else ""


def json_of(data: bytes) -> Any:
    """Return the value of JSON text. Raises InternalError for what is none, also in half of a surrogate pair."""
    try:
        value = json.loads(data)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InternalError(f"{NOT_OURS}: it is no JSON") from None
    return value


def fields_of(answer: Any, **kinds: type | tuple[type, ...]) -> dict[str, Any]:
    """Return an answer that has these fields, each of its type; it may have others. Raises InternalError for anything else."""
    if not isinstance(answer, dict):
        raise InternalError(f"{NOT_OURS}: it is no JSON object")
    odd = [name for name, kind in kinds.items() if not isinstance(answer.get(name, ...), kind)]
    if odd:
        raise InternalError(f"{NOT_OURS}: it has no {', '.join(odd)} as one has")
    return answer


def record_of(answer: Any) -> dict[str, Any]:
    """Return a run as a server shows it. Raises InternalError."""
    return fields_of(
        answer, id=str, state=str, next_event=int, finished_at=(int, float, NOTHING), error=(dict, NOTHING)
    )


def reply_of(kind: type[Any], answer: Any, **kinds: type) -> Any:
    """Return the reply dataclass that an answer stands for; ``kinds`` are its fields'. Raises InternalError."""
    try:
        return reply_from_plain(kind, fields_of(answer, **kinds))
    except ValueError as error:
        raise InternalError(f"{NOT_OURS}: {error}") from None


def error_in(error: Any) -> InferdError:
    """Return the error that an answer holds. Raises InternalError."""
    try:
        return ErrorInfo.of(error).to_exception()
    except (TypeError, KeyError) as broken:
        raise InternalError(f"{NOT_OURS}: {broken}") from None
