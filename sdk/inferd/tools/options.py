"""What a run of tools may be told: its limits, and what happens with errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from inferd.adapter import Adapter, adapter_name
from inferd.calls.arguments import checked_flag, checked_mapping, checked_sampler
from inferd.protocol import InvalidRequest
from inferd.protocol.ranges import check_whole
from inferd.sampling import Sampler

OnError = Literal["tell", "raise"]
MAX_ROUNDS, MAX_CALLS, MAX_TOKENS, MAX_RESULT, TIMEOUT = 10, 64, 1024, 65_536, 60.0


class ToolOptions(TypedDict, total=False):
    """The options of :meth:`inferd.Context.run_tools`.

    ``sampler``: how tokens are drawn, argmax by default. ``tool_choice``: "auto", the model decides; "none"; "required", it must
    call some tool; or a tool's name. The last two hold for the first round, behind which the model decides.

    ``max_rounds`` (10): how often the model may speak; ``max_calls`` (64): how many calls it may make in all. Past either,
    LimitExceeded is raised. ``max_tokens`` (1024): of what it says at a time. ``parallel`` (True): it may make several calls at a
    time, which run side by side. ``timeout`` (60): seconds for a call, None for no end. ``max_result`` (65536): characters of a
    result; a longer one is an error.

    ``on_error``: "tell", the model gets the text of a tool's error and goes on; "raise", the error ends the run.

    ``reasoning_budget``: tokens that the model may think at a time; None: as many as it likes. ``template_arguments``: further
    variables of the chat template, such as ``{"enable_thinking": False}``. ``adapter``: a LoRA adapter. ``system_speculation``:
    as in ``generate``, "auto" by default.
    """

    sampler: Sampler
    tool_choice: str
    max_rounds: int
    max_calls: int
    max_tokens: int
    parallel: bool
    timeout: float | None
    max_result: int
    on_error: OnError
    reasoning_budget: int | None
    template_arguments: Mapping[str, Any]
    adapter: str | Adapter | None
    system_speculation: bool | Literal["auto"]


@dataclass(frozen=True)
class CheckedToolOptions:
    """:class:`ToolOptions` with its defaults. Raises InvalidRequest, which names the option, for an invalid one."""

    sampler: Sampler = field(default_factory=Sampler.argmax)
    tool_choice: str = "auto"
    max_rounds: int = MAX_ROUNDS
    max_calls: int = MAX_CALLS
    max_tokens: int = MAX_TOKENS
    parallel: bool = True
    timeout: float | None = TIMEOUT
    max_result: int = MAX_RESULT
    on_error: OnError = "tell"
    reasoning_budget: int | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: str | Adapter | None = None
    system_speculation: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        checked_sampler(self.sampler)
        checked_flag("parallel", self.parallel)
        adapter_name(self.adapter)
        for name in ("max_rounds", "max_calls", "max_tokens", "max_result"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRequest(f"{name} must be a number of at least 1, not {value!r}")
        checked_mapping("template_arguments", self.template_arguments)
        if self.reasoning_budget is not None:
            check_whole("reasoning_budget", self.reasoning_budget, 0)
        if self.timeout is not None and not (isinstance(self.timeout, (int, float)) and 0 < self.timeout < math.inf):
            raise InvalidRequest(f"timeout must be seconds above 0, or None, not {self.timeout!r}")
        if self.on_error not in ("tell", "raise"):
            raise InvalidRequest(f"on_error must be 'tell' or 'raise', not {self.on_error!r}")
        if not isinstance(self.tool_choice, str):
            raise InvalidRequest(f"tool_choice must be 'auto', 'none', 'required' or a name, not {self.tool_choice!r}")
