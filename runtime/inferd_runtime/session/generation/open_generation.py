"""From a ``generate.start`` request to a running generation, and its steps back to whoever waits for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from inferd import protocol as p
from inferd_grammar import Compiled, GrammarError, GrammarMatcher
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.jobs.draft_verification import check_tree
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor, OfferedMask, OutputMasks
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.probes import read_mask
from inferd_runtime.engine.scheduling.fairness import MAX_PRIORITY
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.constraints.compile_queue import refused
from inferd_runtime.session.constraints.conversion import to_grammar
from inferd_runtime.session.generation.finished_text import BestEffortCheck
from inferd_runtime.session.generation.healing import Healing, check_healing
from inferd_runtime.session.generation.sources import build_sources, check_speculation, offered_source
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.speculation.drafter import OfferedDraft
from inferd_runtime.speculation.drafts import ROOT
from inferd_runtime.speculation.sources import SourceSet


@dataclass(frozen=True)
class ProgramInputs:
    """What the program itself brings with every step: the draft of its speculator, or the mask of its constraint."""

    draft: OfferedDraft | None = None
    mask: OfferedMask | None = None

    def take(self, request: p.NextSteps, context: CachedSequence) -> bool:
        """Check and hand over what ``generate.next`` brings; whether a step waits for it.

        Raises InvalidRequest, and ConstraintError for a mask that allows nothing.
        """
        if self.draft is None and (request.draft or request.positions or request.parents):
            raise p.InvalidRequest("a draft needs a generation started with program_speculation")
        if self.mask is None and (request.mask is not None or request.mask_bits):
            raise p.InvalidRequest("a mask needs a generation started with program_constraint")
        if self.draft is not None:
            check_draft(request, context)
            self.draft.offer(request.draft, request.parents)
        if self.mask is not None:
            self.mask.offer(read_mask(request.mask, request.mask_bits, self.mask.vocab_size))
        return self.draft is not None or self.mask is not None


class OpenGeneration:
    """A generation handle. ``lease`` keeps its adapter, ``told`` is how many steps were handed out. ``healing`` cut its prompt.

    What was given to :meth:`on_close` is called when it is closed, and nothing needs its matcher any more.
    """

    def __init__(
        self, generation: Generation, offers: ProgramInputs, lease: AdapterLease, healing: Healing | None = None
    ) -> None:
        self.generation = generation
        self._healing = healing
        self._offers = offers
        self._lease = lease
        self._finished: BestEffortCheck | None = None
        self._closed: list[Callable[[], None]] = [] if healing is None else [healing.restore]
        self.told = 0

    def request_steps(self, request: p.NextSteps) -> None:
        """Check and hand over what ``generate.next`` brings. Raises InvalidRequest or ConstraintError."""
        if self.generation.listener is not None:
            raise p.InvalidRequest("another generate.next is waiting on this generation")
        if not self.generation.finished() and self._offers.take(request, self.generation.context):
            self.generation.allow()

    def finished_steps(self) -> p.Steps | p.InferdError | None:
        """The steps that are ready, then the error that ended it if one did; None when there is nothing yet."""
        generation = self.generation
        if generation.error is not None and not generation.outbox:
            return generation.error
        if not generation.outbox and not generation.finish:
            return None
        steps = generation.take()
        self.told += len(steps)
        if self._finished is not None:
            return self._finished.reply(steps, generation.finish, self._notify)
        return p.Steps(steps, generation.finish)

    def keep(self, length: int = -1) -> tuple[int, Sequence[int]]:
        """What closing it would leave if ``length`` tokens of the context were delivered (-1: those that were): how many of
        these, and which tokens behind them, where it has not written the healed end of its prompt again.

        Raises InvalidRequest for more than there is.
        """
        delivered = self.generation.delivered_length
        left = (delivered, ()) if self._healing is None else self._healing.keep(delivered)
        held = left[0] + len(left[1])
        if not -1 <= length <= max(delivered, held):
            raise p.InvalidRequest(f"cannot fork {length} tokens: the context holds {held}")
        if length < 0 or length >= delivered:
            return left
        return (length, ()) if self._healing is None else self._healing.keep(length)

    def usage(self) -> p.Usage:
        """What this generation has used."""
        counters = self.generation.counters
        return p.Usage(0, counters.tokens, counters.steps, counters.drafted, counters.accepted)

    def check_at_end(self, finished: BestEffortCheck) -> None:
        """Have the text of a best_effort constraint checked when it is complete."""
        self._finished = finished

    def on_close(self, told: Callable[[], None]) -> None:
        """Have ``told`` called once, behind the close."""
        self._closed.append(told)

    def close(self, keep: int = -1) -> None:
        """Give the context back with the first ``keep`` generated tokens (-1: all that were taken)."""
        self.generation.close(keep)
        self._lease.release()
        while self._closed:
            self._closed.pop()()

    def _notify(self) -> None:
        if self.generation.listener is not None:
            self.generation.listener()


def check_draft(request: p.NextSteps, context: CachedSequence) -> None:
    """A program's draft must be a chain or tree of valid tokens behind the context. Raises InvalidRequest."""
    check_tree(context, request.draft, request.parents)
    start = len(context.tokens)
    expected: list[int] = []
    for parent in request.parents or range(ROOT, len(request.draft) - 1):
        expected.append(start if parent == ROOT else expected[parent] + 1)
    if list(request.positions) != expected:
        raise p.InvalidRequest(
            f"draft positions must count from {start}, one more behind each parent: {expected}, not {request.positions}"
        )


def check_request(request: p.StartGenerate) -> None:
    """Refuse what no model could do, before anything is compiled for it. Raises InvalidRequest or LimitExceeded."""
    check_speculation(request)
    check_healing(request)
    if request.program_constraint and request.constraint is not None:
        raise p.InvalidRequest("program_constraint and constraint exclude each other: each step waits for its mask")
    if any(not stop for stop in request.stop):
        raise p.InvalidRequest("stop: an empty string would stop at once")
    if abs(request.priority) > MAX_PRIORITY:
        raise p.InvalidRequest(f"priority = {request.priority} is outside -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if request.logprobs is not None and request.logprobs < 0:
        raise p.InvalidRequest(f"logprobs = {request.logprobs} is negative")
    if request.logprobs is not None and request.logprobs > p.MAX_LOGPROBS:
        raise p.LimitExceeded(
            f"logprobs = {request.logprobs}; {p.MAX_LOGPROBS} are allowed", limit="logprobs", value=p.MAX_LOGPROBS,
            raise_with="a loop over forward, for more of each row",
        )  # fmt: skip


def start(
    request: p.StartGenerate,
    model: ServedModel,
    context: CachedSequence,
    compiled: Compiled | None,
    sampler: RowSampler,
    lease: AdapterLease,
    healing: Healing | None = None,
) -> OpenGeneration:
    """Build a checked request's generation and put it into the batch. ``lease`` is the caller's if this raises.

    ``healing`` cuts the context, whose end the generation then writes again.
    """
    offers = ProgramInputs(
        OfferedDraft() if request.program_speculation else None,
        OfferedMask(model.info.vocab_size) if request.program_constraint else None,
    )
    matcher = None if compiled is None else compiled.matcher()
    masks = offers.mask if matcher is None else _cursor(matcher, model)
    with ExitStack() as undo:
        # Whatever stops the start, the context has its end back, and what its last generation left with it.
        undo.callback(setattr, context, "memory", context.memory)
        if healing is not None:
            undo.callback(healing.restore)
            healing.cut()
        sources = _sources(request, model, context, sampler, offers.draft)
        if sources is not None:
            undo.callback(sources.drop)
        generation = _generation(request, model, context, sampler, sources, masks, healing)
        undo.pop_all()
    model.engine.submit(generation)
    opened = OpenGeneration(generation, offers, lease, healing)
    if compiled is not None and matcher is not None:
        opened.on_close(partial(compiled.learn, matcher))
    return opened


def _sources(
    request: p.StartGenerate,
    model: ServedModel,
    context: CachedSequence,
    sampler: RowSampler,
    offered: OfferedDraft | None,
) -> SourceSet | None:
    return build_sources(request, model, context, sampler) if offered is None else offered_source(offered, model)


def _generation(
    request: p.StartGenerate,
    model: ServedModel,
    context: CachedSequence,
    sampler: RowSampler,
    sources: SourceSet | None,
    masks: OutputMasks | None,
    healing: Healing | None,
) -> Generation:
    spec = GenerationSpec(
        sampler=sampler,
        max_tokens=request.max_tokens,
        eos_tokens=frozenset(model.tokenizer.eos_tokens),
        grammar=masks,
        sources=sources,
        paced=request.program_speculation or request.program_constraint,
        priority=request.priority,
        logprobs=request.logprobs,
    )
    decode = model.tokenizer.stream()
    text = TextAssembler(decode if healing is None else healing.behind(decode), request.stop)
    return Generation(context, spec, text)


def _cursor(matcher: GrammarMatcher, model: ServedModel) -> OutputMasks:
    return GrammarCursor(matcher, -(-model.info.vocab_size // 32), model.tokenizer.eos_tokens)


def find_compiled(constraint: p.ConstraintSpec, model: ServedModel) -> Compiled | None:
    """The grammar if it is compiled, or compiles in no time. Raises ConstraintError or LimitExceeded if it was refused."""
    try:
        return model.grammars.find(to_grammar(constraint))
    except GrammarError as error:
        raise refused(error) from error


def compile_constraint(constraint: p.ConstraintSpec, model: ServedModel) -> Compiled:
    """Compile (or find) the grammar in this thread. Raises ConstraintError or LimitExceeded."""
    try:
        return model.grammars.compile(to_grammar(constraint))
    except GrammarError as error:
        raise refused(error) from error


def add_usage(one: p.Usage, other: p.Usage) -> p.Usage:
    """Field by field."""
    names = [field.name for field in dataclasses.fields(p.Usage)]
    return p.Usage(**{name: getattr(one, name) + getattr(other, name) for name in names})
