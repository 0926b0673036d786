"""``generate.*``: starting a generation, fetching its steps, closing it."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.contexts import ContextState
from inferd.protocol.grammar import CheckedKeyword, ConstraintSpec
from inferd.protocol.operations import operation
from inferd.protocol.passes import TokenLogprob
from inferd.protocol.sampling import Sampling
from inferd.protocol.speculation import SourceCount, SpeculationSettings


@dataclass(frozen=True)
class Step:
    """What one engine step added to a generation: ``tokens`` (end-of-text excluded) and the text that they complete.

    ``drafted`` tokens were verified, ``accepted`` of them stand, and the model added one of its own; ``truncated`` of all
    these came behind the end of the generation and count for nothing. ``filtered`` guesses were illegal under the
    constraint. ``sources`` says whose they were. ``saved_us``: microseconds that the drafts saved, by the cost model's estimate.
    ``logprobs``, where they were asked for: one per token.
    """

    tokens: list[int]
    text: str = ""
    drafted: int = 0
    accepted: int = 0
    filtered: int = 0
    truncated: int = 0
    saved_us: int = 0
    sources: list[SourceCount] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class GenerationStarted:
    """A started generation. ``prompt`` is filled only for a program's own speculator, which learns from it."""

    generation: int
    position: int
    prompt: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """One or more finished steps. ``finish``: "" while it goes on, else stop | length | closed.

    ``checked``, with the end of a best_effort constraint: the keywords that only the finished text was checked for.
    """

    steps: list[Step]
    finish: str = ""
    checked: list[CheckedKeyword] = field(default_factory=list)


@operation("generate.start", GenerationStarted)
@dataclass(frozen=True)
class StartGenerate:
    """Start generating at the end of a context, which belongs to the generation until it is closed.

    ``program_speculation``: every ``generate.next`` brings a draft of the program's own speculator. ``program_constraint``:
    every one brings a mask, and runs one step; no other constraint and no speculation with it. ``adapter``: the LoRA
    adapter to compute with, "" is none; tokens that were computed with another one are computed again. ``priority``, from
    -3 to 3: each step up doubles its share of what the tenant gets. ``speculation``: how to draft, with
    ``system_speculation``. ``predicted`` or ``predicted_text``: what the output will probably be, used as a draft. ``heal``:
    cut the context back where it ends inside a token, and write its end again; the steps' text begins behind it.
    ``logprobs``: tell each token's log-probability, and so many (at most MAX_LOGPROBS) of the most likely at its place.
    """

    context: int
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    stop: list[str] = field(default_factory=list)
    constraint: ConstraintSpec | None = None
    system_speculation: bool = False
    program_speculation: bool = False
    adapter: str = ""
    priority: int = 0
    program_constraint: bool = False
    speculation: SpeculationSettings | None = None
    predicted: list[int] = field(default_factory=list)
    predicted_text: str = ""
    heal: bool = False
    logprobs: int | None = None


@operation("generate.next", Steps)
@dataclass(frozen=True)
class NextSteps:
    """Wait for the next finished steps. ``draft`` only with ``program_speculation``, a mask (allowed token ids, or bits as
    in ``forward``; neither: all) only with ``program_constraint``. ``parents``: per draft token, which one it follows (-1:
    the context; a smaller index than its own); empty means a chain. ``positions`` are absolute.
    """

    generation: int
    draft: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    mask: list[int] | None = None
    mask_bits: str = ""


@operation("generate.close", ContextState)
@dataclass(frozen=True)
class CloseGenerate:
    """End a generation; the context keeps exactly the first ``keep`` generated tokens. ``-1``: all that were delivered, and
    the end-of-text that the model wrote behind them.
    """

    generation: int
    keep: int = -1
