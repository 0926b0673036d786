"""Ids of responses and of their items: a prefix says what it is, as OpenAI's do."""

from __future__ import annotations

import secrets
from typing import Literal

Prefix = Literal["resp", "msg", "fc", "fco", "ctc", "ctco", "rs"]


def new_id(prefix: Prefix) -> str:
    """Return a new id."""
    return f"{prefix}_{secrets.token_hex(16)}"
