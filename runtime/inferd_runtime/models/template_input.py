"""What a chat template renders, and the two characters that its texts are marked with on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BREAK = "\ufdd0"
"""Breaks the name of a control token in the text of a message. Unicode keeps such noncharacters for uses like this."""
END_MARK = "\ufdd1"
"""Stands behind a message that is to be continued."""


@dataclass(frozen=True)
class TemplateInput:
    """Messages, tools and further variables of a template, as in :class:`~inferd.protocol.RenderChat`."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] | None = None
    cue: bool = False
    continue_final: bool = False
