"""From a ``generate.start`` request to a running generation, and its steps back to whoever waits for them."""

from __future__ import annotations

import dataclasses

from inferd import protocol as p
from inferd_grammar import AnyJson, Choice, Compiled, Constraint, GrammarError, JsonSchema, Regex
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.context import Context
from inferd_runtime.engine.fairness import MAX_PRIORITY
from inferd_runtime.engine.generation import Generation, GenerationSpec
from inferd_runtime.engine.grammar import GrammarCursor
from inferd_runtime.engine.sampling import RowSampler
from inferd_runtime.engine.text import TextAssembler
from inferd_runtime.session.compiling import refused
from inferd_runtime.session.host import ServedModel
from inferd_runtime.speculation.drafter import Drafter, OfferedDraft
from inferd_runtime.speculation.ngram import MAX_DRAFT, NgramDrafter


class OpenGeneration:
    """A generation handle. ``offered`` takes the drafts of a program's own speculator; ``lease`` keeps its adapter."""

    def __init__(self, generation: Generation, offered: OfferedDraft | None, lease: AdapterLease) -> None:
        self.generation = generation
        self._lease = lease
        self._offered = offered

    def request_steps(self, request: p.NextSteps) -> None:
        """Check and hand over what ``generate.next`` brings. Raises InvalidRequest."""
        if self.generation.listener is not None:
            raise p.InvalidRequest("another generate.next is waiting on this generation")
        if self._offered is None:
            if request.draft or request.positions:
                raise p.InvalidRequest("a draft needs a generation started with program_speculation")
            return
        check_draft(request, len(self.generation.context.tokens), self.generation.context)
        self._offered.offer(request.draft)
        self.generation.allow()

    def finished_steps(self) -> p.Steps | p.InferdError | None:
        """The steps that are ready, then the error that ended it if one did; None when there is nothing yet."""
        generation = self.generation
        if generation.error is not None and not generation.outbox:
            return generation.error
        if not generation.outbox and not generation.finish:
            return None
        return p.Steps(generation.take(), generation.finish)

    def usage(self) -> p.Usage:
        """What this generation has used."""
        counters = self.generation.counters
        return p.Usage(0, counters.tokens, counters.steps, counters.drafted, counters.accepted)

    def close(self, keep: int = -1) -> None:
        """Give the context back with the first ``keep`` generated tokens (-1: all that were taken)."""
        self.generation.close(keep)
        self._lease.release()


def check_draft(request: p.NextSteps, position: int, context: Context) -> None:
    """A program's draft must be a chain of valid tokens behind the context. Raises InvalidRequest."""
    expected = list(range(position, position + len(request.draft)))
    if list(request.positions) != expected:
        raise p.InvalidRequest(
            f"draft positions must be consecutive from {position} (draft trees are not supported), not {request.positions}"
        )
    context.check_tokens(request.draft)


def check_request(request: p.StartGenerate) -> None:
    """Refuse what no model could do, before anything is compiled for it. Raises InvalidRequest."""
    if request.system_speculation and request.program_speculation:
        raise p.InvalidRequest("system_speculation and program_speculation (speculator=) exclude each other")
    if any(not stop for stop in request.stop):
        raise p.InvalidRequest("stop: an empty string would stop at once")
    if abs(request.priority) > MAX_PRIORITY:
        raise p.InvalidRequest(f"priority = {request.priority} is outside -{MAX_PRIORITY} to {MAX_PRIORITY}")


def start(
    request: p.StartGenerate,
    model: ServedModel,
    context: Context,
    compiled: Compiled | None,
    sampler: RowSampler,
    lease: AdapterLease,
) -> OpenGeneration:
    """Build a checked request's generation and put it into the batch. ``lease`` is the caller's if this raises."""
    offered = OfferedDraft() if request.program_speculation else None
    drafter: Drafter | None = NgramDrafter(MAX_DRAFT) if request.system_speculation else offered
    spec = GenerationSpec(
        sampler=sampler,
        max_tokens=request.max_tokens,
        eos_tokens=frozenset(model.tokenizer.eos_tokens),
        grammar=None if compiled is None else _cursor(compiled, model),
        drafter=drafter,
        paced=request.program_speculation,
        priority=request.priority,
    )
    generation = Generation(context, spec, TextAssembler(model.tokenizer.stream(), request.stop))
    model.engine.submit(generation)
    return OpenGeneration(generation, offered, lease)


def _cursor(compiled: Compiled, model: ServedModel) -> GrammarCursor:
    return GrammarCursor(compiled.matcher(), -(-model.info.vocab_size // 32), model.tokenizer.eos_tokens)


def find_compiled(constraint: p.Constraint, model: ServedModel) -> Compiled | None:
    """The grammar if it is compiled, or compiles in no time. Raises ConstraintError or LimitExceeded if it was refused."""
    try:
        return model.grammars.find(to_grammar(constraint))
    except GrammarError as error:
        raise refused(error) from error


def compile_constraint(constraint: p.Constraint, model: ServedModel) -> Compiled:
    """Compile (or find) the grammar in this thread. Raises ConstraintError or LimitExceeded."""
    try:
        return model.grammars.compile(to_grammar(constraint))
    except GrammarError as error:
        raise refused(error) from error


def to_grammar(constraint: p.Constraint) -> Constraint:
    """The grammar package's constraint. Raises InvalidRequest for an unknown kind."""
    match constraint.kind:
        case "json_schema":
            return JsonSchema(constraint.value)
        case "regex":
            return Regex(constraint.value)
        case "any_json":
            return AnyJson()
        case "choice":
            return Choice(tuple(constraint.options))
    raise p.InvalidRequest(f"constraint kind {constraint.kind!r} is not one of json_schema, regex, any_json, choice")


def add_usage(one: p.Usage, other: p.Usage) -> p.Usage:
    """Field by field."""
    names = [field.name for field in dataclasses.fields(p.Usage)]
    return p.Usage(**{name: getattr(one, name) + getattr(other, name) for name in names})
