"""A child process from the inside: from the order on its standard input to the function that is its work."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from inferd_runtime.isolation.settings_json import decode_settings
from inferd_runtime.isolation.tether import die_with

T = TypeVar("T")


class Child:
    """This process, as its parent started it."""

    def settings(self, kind: type[T]) -> T:
        """Return the settings that the parent gave, once. Raises InvalidRequest."""
        return decode_settings(sys.stdin.buffer.readline(), kind)

    def seal(self) -> None:
        """Give up what only the start needed. Call it when all is loaded, before the first work for somebody else."""


def run_child(order: Mapping[str, Any]) -> int:
    """Become the child that an order describes. Returns its exit code."""
    die_with(order["parent"])
    target = order["target"]
    child = Child()
    if not target.endswith(".py"):
        code: int = importlib.import_module(target).child_main(child)
        return code
    sys.argv = [target, *order["arguments"]]
    runpy.run_path(target, run_name="__main__", init_globals={"child": child})
    return 0
