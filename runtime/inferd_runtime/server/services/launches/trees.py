"""Runs that descend from one run, and what they use together. Pure state.

Every run of a tree has limits of its own, none above what is left of the root's when it starts. While they go on, their workers
say what they use; once the sum is above the root's limits, the root is to end, and all others with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import Limits, Used

MAX_DEPTH = 4
"""Of a child whose ancestors are all children but the root."""
MAX_CHILDREN = 32
"""Children of one run or script that go on."""
MAX_STARTED = 1024
"""Runs that descend from one root, or that one script starts, over all of its time."""
LEAST_MEMORY_MB = 48
"""What a sandbox takes before its program begins, and a little."""
LEAST_CPU_S = 0.1
LEAST_WALL_S = 0.1
RETRY_SECONDS = 0.25
LEAST_OUTPUT_BYTES = 1024
LEAST_OUTPUT_EVENTS = 2


@dataclass(eq=False)
class TreeNode:
    """One run of a tree, or a script, which has no limits. ``ends_at``: when its wall time is over, in monotonic seconds."""

    run: str
    limits: Limits | None
    ends_at: float
    parent: TreeNode | None = None
    used: Used = field(default_factory=lambda: Used(""))
    children: list[TreeNode] = field(default_factory=list)
    """Those that go on."""
    ended: Used = field(default_factory=lambda: Used(""))
    """What the ended descendants used, except memory."""
    started: int = 0
    """Runs of the tree so far, if it is the root."""

    @property
    def depth(self) -> int:
        """How many ancestors it has."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def budget(self) -> TreeNode:
        """The first run of its line: whose limits hold for all of them."""
        first = self
        while first.parent is not None and first.parent.limits is not None:
            first = first.parent
        return first

    def nodes(self) -> Iterator[TreeNode]:
        """Yield it and its descendants that go on."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def total(self) -> Used:
        """Return what it and all of its descendants use and used."""
        live = list(self.nodes())
        return Used(
            self.run,
            sum(node.used.cpu_s + node.ended.cpu_s for node in live),
            sum(node.used.memory_mb for node in live),
            sum(node.used.output_bytes + node.ended.output_bytes for node in live),
            sum(node.used.output_events + node.ended.output_events for node in live),
        )

    def exceeded(self) -> LimitExceeded | None:
        """Return the error of the limit that the run and its descendants are above together."""
        if self.limits is None:
            return None
        total = self.total()
        for name in ("cpu_s", "memory_mb", "output_bytes", "output_events"):
            limit = getattr(self.limits, name)
            if getattr(total, name) > limit:
                return _exceeded(name, f"the run and its children used more than {limit:g}", limit)
        return None

    def room_for(self, wanted: Limits, now: float) -> Limits:
        """Return what a new child may have of ``wanted``. Raises LimitExceeded that says why there can be no child."""
        self._check_place()
        budget = self.budget
        if budget.limits is None:
            return wanted
        total = budget.total()
        left = {
            "wall_s": min(budget.ends_at, self.ends_at) - now,
            "cpu_s": budget.limits.cpu_s - total.cpu_s,
            "memory_mb": int(budget.limits.memory_mb - total.memory_mb),
            "output_bytes": budget.limits.output_bytes - total.output_bytes,
            "output_events": budget.limits.output_events - total.output_events,
        }
        for name, least in LEAST.items():
            if left[name] < least:
                value = getattr(budget.limits, name)
                error = _exceeded(name, f"{max(left[name], 0):g} is left for another child of {value:g}", value)
                raise _for_now(error) if name == "memory_mb" and self.children else error
        given = {name: min(getattr(wanted, name), most) for name, most in left.items()}
        return msgspec.structs.replace(wanted, **given)

    def add(self, run: str, limits: Limits, now: float) -> TreeNode:
        """Note a child that was started. Until it says what it uses, it counts as what every sandbox takes."""
        child = TreeNode(run, limits, now + limits.wall_s, self, Used(run, memory_mb=LEAST_MEMORY_MB))
        self.children.append(child)
        self._root.started += 1
        return child

    def remove(self, child: TreeNode) -> None:
        """Note that a child is over: what it and its own used stays counted, except memory."""
        self.children.remove(child)
        total = child.total()
        self.ended = Used(
            self.run,
            self.ended.cpu_s + total.cpu_s,
            0.0,
            self.ended.output_bytes + total.output_bytes,
            self.ended.output_events + total.output_events,
        )

    @property
    def _root(self) -> TreeNode:
        return self if self.parent is None else self.parent._root

    def _check_place(self) -> None:
        if self.depth >= MAX_DEPTH:
            raise _too_many("launch_depth", MAX_DEPTH, f"children of children are {MAX_DEPTH} deep already")
        if len(self.children) >= MAX_CHILDREN:
            raise _for_now(_too_many("children", MAX_CHILDREN, f"{MAX_CHILDREN} children go on already"))
        if self._root.started >= MAX_STARTED:
            raise _too_many("descendants", MAX_STARTED, f"{MAX_STARTED} were started already")


LEAST = {
    "wall_s": LEAST_WALL_S,
    "cpu_s": LEAST_CPU_S,
    "memory_mb": LEAST_MEMORY_MB,
    "output_bytes": LEAST_OUTPUT_BYTES,
    "output_events": LEAST_OUTPUT_EVENTS,
}


def _exceeded(name: str, text: str, value: float) -> LimitExceeded:
    raise_with = f"a higher {name} for the run that launches: its children share it"
    return LimitExceeded(f"{name}: {text}", limit=name, value=value, raise_with=raise_with)


def _too_many(name: str, value: int, text: str) -> LimitExceeded:
    return LimitExceeded(text, limit=name, value=value, raise_with="fewer at a time")


def _for_now(error: LimitExceeded) -> LimitExceeded:
    """Return the error of what its caller's children give back at their end."""
    error.detail["retry_after_s"] = RETRY_SECONDS
    return error
