"""What the process of a server of tools is told. Apart from that process's own module, which needs the ``mcp`` package."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ToolServerStart:
    """Where its gateway listens, and the server: a command with its environment, or a URL with headers."""

    endpoint: str
    name: str
    home: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
