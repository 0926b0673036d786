"""inferd: programs that drive a language model's forward pass, KV cache and sampling.

The same calls work in a program that runs inside the runtime and in a script connected by :func:`connect`.
"""

# ruff: noqa: F403, F405 - names that come with a star are loaded late, and listed in `public` alone

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferd import files, http, mcp, queue, session, topic
    from inferd.client import Client as Client, SyncClient as SyncClient
    from inferd.public import *
    from inferd.transport.websocket import Connection

__all__ = [
    "Adapter", "AllOf", "AnyJson", "AttentionMask", "Cancelled", "Candidates", "CheckedKeyword", "Child", "Choice",
    "ClientError", "ConstraintError", "ConstraintViolated", "Context", "CustomSampler", "Distribution", "DraftTree",
    "EndOfMessages", "Entropy", "Exact", "Forbidden", "Gbnf", "Generator", "Grammar", "IdempotencyKeyReused", "InferdError",
    "InternalError", "InvalidRequest", "JsonSchema", "JsonText", "Lark", "LimitExceeded", "Logits", "Logprob", "Logprobs",
    "Matcher", "Model", "NotFound", "Partial", "ProgramError", "ProgramSyntaxError", "ReasoningSpec", "Regex", "Sampler",
    "SnapshotDamaged", "SnapshotForeign", "SourceStats", "SpecConfig", "SpeculationCycle", "SpeculationStats", "Speculator",
    "Step", "StepConstraint", "Tag", "Tagged", "TaggedSpan", "TokenLogprob", "TokenMask", "TokenVocabulary", "Tokenizer",
    "Truncated", "Unauthorized", "Unavailable", "Verification", "connect", "files", "http", "launch", "mcp", "queue",
    "session", "tool", "topic",
]  # fmt: skip
DEFAULT_URL = "ws://127.0.0.1:7070"
CLIENTS = frozenset({"Client", "SyncClient"})
MODULES = frozenset({"files", "http", "mcp", "queue", "session", "topic"})


def __getattr__(name: str) -> Any:
    """Import what is asked for first: processes of the runtime need the protocol and little else. The clients of runs, and what
    they import, do not exist inside the sandbox.
    """
    home = "client" if name in CLIENTS else "public" if name in __all__ and name not in MODULES else ""
    if home:
        globals()[name] = getattr(importlib.import_module(f"inferd.{home}"), name)
        return globals()[name]
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"inferd.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"inferd.{name}":
                raise
    raise AttributeError(f"module 'inferd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what there is, loaded or not."""
    return sorted({*globals(), *__all__, *CLIENTS})


def connect(url: str = DEFAULT_URL, token: str | None = None, *, ca: str | None = None) -> Connection:
    """Connect a script to a runtime: ``async with inferd.connect(url, token=...):``.

    Inside the block every context, model and session call of this task, and of tasks started in it, goes to that
    runtime. When the block ends, the runtime releases everything that the script still held there.

    ``url`` is the server's address (``http://``, ``https://``, ``ws://`` or ``wss://``); ``token`` its access token; ``ca`` a
    file with the certificates to trust instead of the system's, for a server whose certificate is of your own. On entry
    the block raises Unauthorized for a missing or wrong token, Unavailable when no runtime answers there, and
    InvalidRequest for an invalid URL. If the connection is lost later, every call that waits, and every later one, raises
    Unavailable.
    """
    # Not at the top: inside the sandbox the client and what it imports do not exist.
    from inferd.transport.websocket import Connection

    return Connection(url, token, ca)
