"""The checked arguments of ``Context.generate``, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from inferd.constraints import StepConstraint
from inferd.custom_sampler import CustomSampler
from inferd.protocol import Probe, ReasoningSpec, Sampling, StartGenerate
from inferd.schema import OutputConstraint
from inferd.spec_config import RuntimeDrafts
from inferd.speculation import Speculator
from inferd.speculation_stats import SpeculationCycle

OnLength = Literal["complete", "try_complete", "complete_or_cut", "error", "cut"]


@dataclass(frozen=True)
class GenerateArguments:
    """The arguments of ``Context.generate``, checked and converted to what the request needs."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    constrain: OutputConstraint | StepConstraint | None
    speculator: Speculator | None
    drafts: RuntimeDrafts
    adapter: str = ""
    priority: int = 0
    heal: bool = False
    on_cycle: Callable[[SpeculationCycle], object] | None = None
    logprobs: int | None = None
    on_length: OnLength | None = None
    reads_json: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningSpec | None = None
    shown: tuple[str, ...] = ()
    include_stop: bool = False
    chooser: CustomSampler | None = None
    probes: tuple[Probe, ...] = ()
    logprob_tokens: tuple[int, ...] = ()

    @property
    def constraint(self) -> OutputConstraint | None:
        """The constraint if the runtime applies it, else None."""
        return self.constrain if isinstance(self.constrain, OutputConstraint) else None

    @property
    def own_constraint(self) -> StepConstraint | None:
        """The constraint if the program computes its masks itself, else None."""
        return None if isinstance(self.constrain, OutputConstraint) else self.constrain

    @property
    def best_effort(self) -> bool:
        """True if the runtime checks the finished text, which may fail."""
        return self.constraint is not None and self.constraint.constraint.best_effort

    @property
    def wire_on_length(self) -> str:
        """What the runtime does when the tokens are used up. A reader of JSON wants a whole value if possible."""
        if self.on_length is None:
            return "try_complete" if self.reads_json and self.constraint is not None else "cut"
        return "cut" if self.on_length == "error" else self.on_length

    def for_json(self) -> GenerateArguments:
        """Return the same for one who reads JSON, and has to see where the reasoning before it ends."""
        marks = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        return replace(self, reads_json=True, shown=(*self.shown, *(mark for mark in marks if mark not in self.shown)))

    def request(self, context: int) -> StartGenerate:
        """Return the request that starts the generation on the context of that id."""
        return StartGenerate(
            context=context,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop=list(self.stop),
            constraint=None if self.constraint is None else self.constraint.constraint,
            system_speculation=self.drafts.on,
            program_speculation=self.speculator is not None,
            adapter=self.adapter,
            priority=self.priority,
            program_constraint=self.own_constraint is not None,
            speculation=self.drafts.settings,
            predicted=list(self.drafts.predicted),
            predicted_text=self.drafts.predicted_text,
            heal=self.heal,
            logprobs=self.logprobs,
            on_length=self.wire_on_length,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            stop_token_ids=list(self.stop_token_ids),
            reasoning=self.reasoning,
            shown=list(self.shown),
            include_stop=self.include_stop,
            candidates=None if self.chooser is None else self.chooser.k,
            probes=list(self.probes),
            logprob_tokens=list(self.logprob_tokens),
        )
