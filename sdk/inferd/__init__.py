"""inferd: programs that drive a language model's forward pass, KV cache and sampling.

The same calls work in a program that runs inside the runtime and in a script connected by :func:`connect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd import files, http, mcp, queue, session, topic
from inferd.adapter import Adapter
from inferd.attention import AttentionMask
from inferd.children import Child, launch
from inferd.constraints import AllOf, Exact, Gbnf, JsonText, Lark, StepConstraint, Tag, Tagged, TaggedSpan
from inferd.context import Context
from inferd.custom_sampler import Candidates, CustomSampler
from inferd.generation import Generator
from inferd.grammar import Grammar, Matcher
from inferd.masks import TokenMask
from inferd.model import Model, Tokenizer
from inferd.partial import Partial
from inferd.probes import Distribution, Entropy, Logits, Logprob, Logprobs
from inferd.protocol import (
    Cancelled,
    CheckedKeyword,
    ClientError,
    ConstraintError,
    ConstraintViolated,
    EndOfMessages,
    Forbidden,
    IdempotencyKeyReused,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ProgramError,
    ProgramSyntaxError,
    ReasoningSpec,
    SnapshotDamaged,
    SnapshotForeign,
    Step,
    TokenLogprob,
    Truncated,
    Unauthorized,
    Unavailable,
)
from inferd.protocol.speculation import Verification
from inferd.sampling import Sampler
from inferd.schema import AnyJson, Choice, JsonSchema, Regex
from inferd.spec_config import SpecConfig
from inferd.speculation import DraftTree, Speculator
from inferd.speculation_stats import SourceStats, SpeculationCycle, SpeculationStats
from inferd.tools import tool
from inferd.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    from inferd.client import Client as Client, SyncClient as SyncClient
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


def __getattr__(name: str) -> Any:
    """Import the clients of runs when they are asked for: inside the sandbox neither they nor what they import exist."""
    if name not in CLIENTS:
        raise AttributeError(f"module 'inferd' has no attribute {name!r}")
    from inferd import client

    return getattr(client, name)


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
