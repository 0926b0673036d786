"""A child process from the inside: from the order on its standard input to the function that is its work."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.interpreter import loading
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.layers import Confinement, Layer
from inferd_runtime.isolation.order import Access, ResourceLimits
from inferd_runtime.isolation.settings_json import decode_settings

T = TypeVar("T")


class Child:
    """This process, as its parent started it."""

    def __init__(self, confinement: Confinement, *, require_all: bool) -> None:
        self._confinement = confinement
        self._require_all = require_all

    @property
    def layers(self) -> list[Layer]:
        """The layers between this process and the machine."""
        return self._confinement.layers

    def settings(self, kind: type[T]) -> T:
        """Return the settings that the parent gave, once. Raises InvalidRequest."""
        return decode_settings(sys.stdin.buffer.readline(), kind)

    def seal(self) -> None:
        """Give up what only the start needed. Call it when all is loaded, before the first work for somebody else.

        Raises Unavailable where a layer is missing and none may be.
        """
        self._confinement.seal()
        missing = [f"{layer.name} ({layer.reason})" for layer in self.layers if not layer.active]
        if missing and self._require_all:
            raise Unavailable(f"this system does not offer what --require-isolation asks for: {', '.join(missing)}")


def run_child(order: Mapping[str, Any]) -> int:
    """Become the child that an order describes. Returns its exit code."""
    access, limits = msgspec.convert(order["access"], Access), msgspec.convert(order["limits"], ResourceLimits)
    confinement = Confinement(ChildKind(order["kind"]), access, limits, order["parent"])
    confinement.start()
    child = Child(confinement, require_all=order["require_all"])
    target = order["target"]
    if not target.endswith(".py"):
        with loading():
            module = importlib.import_module(target)
        code: int = module.child_main(child)
        return code
    sys.argv = [target, *order["arguments"]]
    runpy.run_path(target, run_name="__main__", init_globals={"child": child})
    return 0
