"""``generate.*``: starting a generation, fetching its steps, closing it."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.candidates import CandidateRow, check_candidates
from inferd.protocol.carrying import shown
from inferd.protocol.contexts import ContextState
from inferd.protocol.errors import ConstraintError, InvalidRequest, LimitExceeded
from inferd.protocol.grammar import CheckedKeyword, ConstraintSpec, check_constraint
from inferd.protocol.operations import operation
from inferd.protocol.passes import MAX_LOGPROB_TOKENS, MAX_LOGPROBS, Probe, TokenLogprob, TokenProbes, check_probes
from inferd.protocol.ranges import check_whole
from inferd.protocol.sampling import Sampling
from inferd.protocol.session import Usage
from inferd.protocol.speculation import SourceCount, SpeculationSettings, check_settings, check_tree
from inferd.protocol.tokens import check_ids

MAX_PRIORITY = 3
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 16_384
MAX_STOP_TOKENS = 256
MAX_MARK = 64
MAX_SHOWN_TOKENS = 64
ON_LENGTH = ("cut", "complete", "try_complete", "complete_or_cut")


@dataclass(frozen=True)
class Step:
    """What one engine step added to a generation: ``tokens`` (end-of-text excluded) and the text that they complete.

    ``drafted`` tokens were verified, ``accepted`` of them stand, and the model added one of its own; ``truncated`` of all
    these came behind the end of the generation and count for nothing. ``filtered`` guesses were illegal under the
    constraint. ``sources`` says whose they were. ``saved_us``: microseconds that the drafts saved, by the cost model's estimate.
    ``logprobs`` and ``probes``, where they were asked for: one per token. ``joined``: of how many engine steps it is made;
    more than one only where the reader asks for it (:class:`NextSteps`).
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
    probes: list[TokenProbes] = field(default_factory=list)
    joined: int = 1


@dataclass(frozen=True)
class GenerationStarted:
    """A started generation. ``prompt`` is filled only for a program's own speculator or sampler, which learns from it."""

    generation: int
    position: int
    prompt: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """One or more finished steps. ``finish``: "" while it goes on, else stop | length | closed.

    ``checked``, with the end of a best_effort constraint: the keywords that only the finished text was checked for.
    ``stopped_by``: the stop string that ended it, "" for any other end. ``stop_token``: the token that did, end-of-text included.
    ``candidates``: the row that a program's own sampler has to choose of; none at the end, and where there is no such sampler.
    ``usage``: with stop and length, one entry: what the whole session has used so far. ``context``: its state, one entry, where
    the end has closed the generation. ``cached``, with the first steps: how many tokens of the prompt it did not compute itself.
    """

    steps: list[Step]
    finish: str = ""
    checked: list[CheckedKeyword] = field(default_factory=list)
    stopped_by: str = ""
    stop_token: int | None = None
    candidates: list[CandidateRow] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    context: list[ContextState] = field(default_factory=list)
    cached: int = 0


@dataclass(frozen=True)
class ReasoningSpec:
    """What a model thinks before it answers stands between ``begin`` and ``end``, names of special tokens or other texts.

    ``opened``: the context ends with ``begin``; else the model may open it with what it writes first. ``budget``: behind so many
    tokens ``end`` is forced; None: never.
    """

    begin: str
    end: str
    opened: bool = False
    budget: int | None = None


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
    ``logprobs``: tell each token's log-probability, and so many (at most MAX_LOGPROBS) of the most likely at its place;
    ``logprob_tokens``: of these tokens instead (at most MAX_LOGPROB_TOKENS).
    ``on_length``: "cut" ends the text wherever its tokens are used up; "complete" keeps tokens back for the nearest end that the
    constraint allows, and refuses a constraint for which no end is found; "try_complete" cuts that one's text;
    "complete_or_cut" cuts it, too, and any text whose shortest end needs more tokens than there are.
    ``stop_token_ids`` end the text as end-of-text does, which does not with ``ignore_eos``. ``min_tokens``: so many tokens come
    before any token or stop string ends the text; a constraint that is complete ends it all the same.
    ``reasoning``: the model may think first, and the constraint holds what comes behind that. ``shown``: names of special tokens
    that show in the text (``*``: all). ``include_stop``: the stop string that ends the text is a part of it.
    ``candidates``: the program chooses each token itself, of so many of the most likely (0: all, at most MAX_CANDIDATES): every
    ``generate.next`` but the first brings one; without speculation, and without a constraint of its own. ``probes``: what to
    tell of each token's distribution, behind penalties, bias and mask.
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
    on_length: str = "cut"
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: list[int] = field(default_factory=list)
    reasoning: ReasoningSpec | None = None
    shown: list[str] = field(default_factory=list)
    include_stop: bool = False
    candidates: int | None = None
    probes: list[Probe] = field(default_factory=list)
    logprob_tokens: list[int] = field(default_factory=list)


def check_start_generate(request: StartGenerate) -> None:
    """Raises InvalidRequest or ConstraintError, which name the field, for what no model could do.

    The sampler has a check of its own, ``check_sampling``.
    """
    check_whole("max_tokens", request.max_tokens, 1)
    if len(request.stop) > MAX_STOPS or sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
        raise LimitExceeded(
            f"stop: {MAX_STOPS} strings of {MAX_STOP_CHARACTERS} characters in all are allowed",
            limit="stop", value=MAX_STOPS, raise_with="fewer stop strings",
        )  # fmt: skip
    if not all(request.stop):
        raise InvalidRequest(f"stop must hold strings that are not empty, not {shown(request.stop)}")
    _check_ends(request)
    _check_reasoning(request)
    check_whole("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    _check_logprobs(request)
    check_probes("generate", request.probes)
    if request.candidates is not None:
        check_candidates(request.candidates, request.sampling)
    check_ids("predict", request.predicted)
    if request.on_length not in ON_LENGTH:
        raise InvalidRequest(f"on_length must be {' or '.join(map(repr, ON_LENGTH))}, not {shown(request.on_length)}")
    if request.on_length == "complete" and request.constraint is None:
        raise InvalidRequest('on_length="complete" needs a constraint (constrain=) that the runtime applies')
    if request.sampling.allowed_tokens and (request.heal or request.on_length == "complete"):
        other = "heal" if request.heal else 'on_length="complete"'
        raise InvalidRequest(f"allowed_tokens: {other} does not go with them, and may need others")
    if request.constraint is not None:
        check_constraint(request.constraint)
    _check_exclusions(request)
    if request.speculation is not None:
        check_settings(request.speculation)
        _check_needs(request, request.speculation)


def _check_logprobs(request: StartGenerate) -> None:
    if request.logprobs is not None:
        check_whole("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    elif request.logprob_tokens:
        raise InvalidRequest("logprob_tokens: they are told beside log-probabilities: add logprobs=0")
    if len(request.logprob_tokens) > MAX_LOGPROB_TOKENS:
        raise InvalidRequest(f"logprob_tokens: {len(request.logprob_tokens)}; {MAX_LOGPROB_TOKENS} are allowed")
    check_ids("logprob_tokens", request.logprob_tokens)


def _check_ends(request: StartGenerate) -> None:
    """Raises InvalidRequest or LimitExceeded for what says when the text ends, beside stop strings."""
    if len(request.stop_token_ids) > MAX_STOP_TOKENS:
        raise LimitExceeded(
            f"stop_token_ids: {len(request.stop_token_ids)} of them; {MAX_STOP_TOKENS} are allowed",
            limit="stop_tokens", value=MAX_STOP_TOKENS, raise_with="fewer of them",
        )  # fmt: skip
    check_ids("stop_token_ids", request.stop_token_ids)
    check_whole("min_tokens", request.min_tokens, 0)
    if request.min_tokens > request.max_tokens:
        raise InvalidRequest(f"min_tokens must be at most max_tokens ({request.max_tokens}), not {request.min_tokens}")
    if request.ignore_eos and (request.constraint is not None or request.heal):
        other = "heal" if request.constraint is None else "a constraint (constrain=)"
        raise InvalidRequest(f"ignore_eos does not go with {other}, whose end is the end of the text")


def _check_reasoning(request: StartGenerate) -> None:
    """Raises InvalidRequest or LimitExceeded for reasoning and shown tokens that no text could have."""
    if len(request.shown) > MAX_SHOWN_TOKENS or sum(map(len, request.shown)) > MAX_STOP_CHARACTERS:
        raise LimitExceeded(
            f"shown: {len(request.shown)} of them; {MAX_SHOWN_TOKENS} of {MAX_STOP_CHARACTERS} characters in all are allowed",
            limit="shown_tokens", value=MAX_SHOWN_TOKENS, raise_with="fewer of them",
        )  # fmt: skip
    reasoning = request.reasoning
    if reasoning is None:
        return
    for name, mark in (("begin", reasoning.begin), ("end", reasoning.end)):
        if not 0 < len(mark) <= MAX_MARK:
            raise InvalidRequest(f"reasoning: {name} must have 1 to {MAX_MARK} characters, not {len(mark)}")
    if reasoning.budget is not None:
        check_whole("reasoning: budget", reasoning.budget, 0)
    if request.program_constraint or request.heal:
        other = "heal" if request.heal else "a constraint of your own"
        raise InvalidRequest(f"reasoning and {other} exclude each other")
    if request.constraint is not None and request.constraint.best_effort:
        raise InvalidRequest("reasoning does not go with mode best_effort, which checks the output as a whole")


def _check_exclusions(request: StartGenerate) -> None:
    """Raises InvalidRequest for fields that do not go together."""
    if request.predicted and request.predicted_text:
        raise InvalidRequest("predicted and predicted_text exclude each other")
    speculator = "program_speculation (speculator=)"
    drafts = {
        "system_speculation": request.system_speculation,
        "a prediction (predict=)": bool(request.predicted or request.predicted_text),
    }
    if request.program_speculation and any(drafts.values()):
        raise InvalidRequest(f"{_first(drafts)} and {speculator} exclude each other")
    others = {"constraint": request.constraint is not None, speculator: request.program_speculation, **drafts}
    if request.program_constraint and any(others.values()):
        raise InvalidRequest(
            f"program_constraint (a constraint of your own) and {_first(others)} exclude each other: "
            "each step waits for its mask"
        )
    others = {"a constraint of your own": request.program_constraint, speculator: request.program_speculation, **drafts}
    if request.candidates is not None and any(others.values()):
        raise InvalidRequest(
            f"candidates (a sampler of your own) and {_first(others)} exclude each other: each step waits for its token"
        )
    if request.heal and request.program_constraint:
        raise InvalidRequest(
            "heal and program_constraint exclude each other: healing is a constraint on the first tokens"
        )
    if request.heal and request.constraint is not None and request.constraint.best_effort:
        raise InvalidRequest("heal does not go with mode best_effort, which checks the output as a whole")


def _first(given: dict[str, bool]) -> str:
    """Return the name of the first that is True."""
    return next(name for name, wanted in given.items() if wanted)


def _check_needs(request: StartGenerate, settings: SpeculationSettings) -> None:
    """Raises InvalidRequest for settings that need something which the request leaves out."""
    if not request.system_speculation:
        raise InvalidRequest("speculation (how to draft) needs system_speculation")
    if "grammar" in settings.sources and request.constraint is None:
        raise InvalidRequest('sources: the source "grammar" needs a constraint (constrain=)')
    predicts = bool(request.predicted or request.predicted_text)
    if settings.sources and predicts != ("predicted" in settings.sources):
        raise InvalidRequest('sources: a prediction (predict=) and "predicted" among the sources go together')


MOST_STEPS = 32
"""The largest ``least`` of a ``generate.next``. A generation may be ahead of its reader by twice as many steps as it asks for."""
MOST_JOINED = 128
"""The same where steps are joined. Those that cannot be come 32 at a time all the same."""


@operation("generate.next", Steps)
@dataclass(frozen=True)
class NextSteps:
    """Wait for the next finished steps. ``least``: for so many of them, or the end; for one where the program takes part in
    every step, and for four at most where its speculator has guessed nothing for a while. ``draft`` only with
    ``program_speculation``, a mask (allowed token ids, or bits as in ``forward``; neither: all) only with
    ``program_constraint``, a ``token`` (of the row that was offered last) only with ``candidates``. ``parents``: per draft
    token, which one it follows (-1: the context; a smaller index than its own); empty means a chain. ``positions`` are
    absolute. ``joined``: steps in a row that have nothing but tokens and text come as one. ``closes``: with the last steps
    the generation is closed, as by ``generate.close`` that keeps all.
    """

    generation: int
    draft: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    mask: list[int] | None = None
    mask_bits: str = ""
    least: int = 1
    token: int | None = None
    joined: bool = False
    closes: bool = False


def check_next_steps(request: NextSteps) -> None:
    """Raises InvalidRequest, which names the field, for a draft that no model could verify or a ``least`` that is out of range,
    and ConstraintError for a mask that allows nothing.
    """
    check_whole("least", request.least, 1, MOST_JOINED if request.joined else MOST_STEPS)
    if request.token is not None:
        check_ids("token", [request.token])
    if request.draft or request.parents:
        check_ids("draft", request.draft)
        check_tree(request.draft, request.parents or None)
    if request.mask is not None:
        check_ids("mask", request.mask)
        check_step_mask(bool(request.mask or request.mask_bits))


def check_step_mask(allows: bool) -> None:
    """Raises ConstraintError unless the mask of a program's own constraint allows some token."""
    if not allows:
        raise ConstraintError("step() allows no token: include end-of-text where the text may end")


@operation("generate.close", ContextState)
@dataclass(frozen=True)
class CloseGenerate:
    """End a generation; the context keeps exactly the first ``keep`` generated tokens. ``-1``: all that were delivered, and
    the end-of-text that the model wrote behind them.
    """

    generation: int
    keep: int = -1
