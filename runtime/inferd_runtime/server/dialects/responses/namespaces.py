"""Tools that come in groups: within a namespace a function's name is its own, and the model sees both names in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MARK = "__"
NAMESPACE = "namespace"


def shown_name(namespace: str | None, name: str) -> str:
    """Return what the model calls a function."""
    return f"{namespace}{MARK}{name}" if namespace else name


def names_of(tools: Sequence[Any]) -> Mapping[str, tuple[str, str]]:
    """Return, by what the model calls them, namespace and name of the functions that are in namespaces. The tools are checked."""
    return {
        shown_name(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in tools
        if group.get("type") == NAMESPACE
        for tool in group["tools"]
    }
