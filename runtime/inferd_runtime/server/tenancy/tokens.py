"""Access tokens: what one allows, how strong it has to be, and how it is recognized without being kept."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass

from inferd.protocol import InvalidRequest
from inferd_runtime.server.tenancy.quotas import Role

TOKEN_BYTES = 32
PREFIX = "inferd_"
"""Of tokens that are made here, so that scanners for secrets find them."""
SHORTEST = 16
FEWEST_KINDS = 8
"""Different characters that a token needs: 16 letters of 8 kinds can be told from a word, and from one key held down."""


@dataclass(frozen=True)
class TokenRights:
    """What a token allows. ``token_id`` names it in lists and logs; ``expires_at`` is in seconds since the epoch."""

    tenant: str
    role: Role = Role.USER
    token_id: str = ""
    expires_at: float = math.inf


def new_token() -> str:
    """Return a token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(token: str) -> bytes:
    """Return what is kept of a token.

    A plain SHA-256 is enough: a slow hash protects passwords, which can be guessed, and would cost every request; nobody
    guesses 256 random bits. A token that an operator chose stands in the operator's own file, and is hashed in memory only.
    """
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def check_strength(token: str, where: str) -> None:
    """Raise InvalidRequest if a token is easy to guess. ``where`` says which it is; the token itself is not repeated."""
    if len(token) < SHORTEST or len(set(token)) < FEWEST_KINDS:
        raise InvalidRequest(
            f"{where} is too easy to guess: use {SHORTEST} characters or more, of {FEWEST_KINDS} kinds or more, such as those "
            "of `inferd token create`"
        )
