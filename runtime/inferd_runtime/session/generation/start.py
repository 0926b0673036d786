"""``generate.start``, from the top down: check, heal the prompt, compile the constraint, build the sources of drafts, submit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from inferd import protocol as p
from inferd_grammar import Compiled, EndPlanner
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor, OutputMasks
from inferd_runtime.engine.jobs.narrowed_masks import NarrowedMasks
from inferd_runtime.engine.jobs.program_choice import ProgramChoice
from inferd_runtime.engine.jobs.step_probes import StepProbes
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.probes import check_vocabulary
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.constraints.compile_call import when_compiled
from inferd_runtime.session.generation.ending import end_planner, settled_ending
from inferd_runtime.session.generation.finished_text import BestEffortCheck, at_once
from inferd_runtime.session.generation.healing import Healing
from inferd_runtime.session.generation.open_generation import OpenGeneration, ProgramInputs
from inferd_runtime.session.generation.reasoning import reserved_tokens, with_reasoning
from inferd_runtime.session.generation.shown_tokens import shown_decoder
from inferd_runtime.session.generation.sources import build_sources
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, OpenContext, SessionState
from inferd_runtime.session.texts import check_text, run_with
from inferd_runtime.speculation.sources import SourceSet

TOKEN_NUMBERS, BIAS_NUMBERS = 10, 50
"""What a token of a prediction, and a bias in its table, was measured to take, in numbers of four bytes."""


def start(state: SessionState, call: Call) -> None:
    """Put a generation into the batch, as soon as its prediction is tokenized and its constraint compiled."""
    request: p.StartGenerate = call.request
    p.check_start_generate(request)
    model, text = state.free_context(request.context).model, request.predicted_text
    check_text(model, len(text), model.info.max_context)

    def predicted(tokens: Sequence[int]) -> None:
        _start(state, call, replace(request, predicted=list(tokens), predicted_text=""))

    if not text:
        return _start(state, call, request)
    run_with(state, call, len(text), partial(model.tokenizer.encode, text), predicted)


def _start(state: SessionState, call: Call, request: p.StartGenerate) -> None:
    entry = state.free_context(request.context)
    state.check_room()
    for name in ("stop_token_ids", "logprob_tokens"):
        check_vocabulary(name, getattr(request, name), entry.model.info.vocab_size)
    healing = Healing.of(entry.context, entry.model) if request.heal else None
    if healing is not None:
        request = healing.constrain(request)
    if request.constraint is None:
        call.respond(_submit(state, request, entry, healing, None, None))
    else:
        submit = partial(_submit, state, request, entry, healing, entry.model.generations.clock())
        when_compiled(state, call, entry.model, request.constraint, submit, hold=entry.context)


def _submit(
    state: SessionState,
    request: p.StartGenerate,
    entry: OpenContext,
    healing: Healing | None,
    asked: float | None,
    compiled: Compiled | None,
) -> p.GenerationStarted:
    """Build the generation, put it into the batch and give it a handle. ``asked``: when its constraint began to be compiled."""
    state.check_room()
    model, context, closing = entry.model, entry.context, ExitStack()
    if healing is not None:
        closing.callback(healing.restore)
    sampler = entry.row_sampler(request.sampling)
    inputs = ProgramInputs.of(request, model.info.vocab_size)
    with entry.leased(request.adapter) as lease:
        masks: OutputMasks | None = inputs.mask
        planner: EndPlanner | None = None
        if compiled is not None:
            request, masks, planner = _constrained(request, compiled, entry, closing)
        masks = with_reasoning(masks, request, model, context, planner)
        with _undone_on_error(context, healing) as undo:
            sources = build_sources(request, model, context, sampler, inputs.draft)
            if sources is not None:
                undo.callback(sources.drop)
            spec = _spec(request, model, sampler, masks, sources)
            held = spec.held_numbers(model.info.vocab_size) + _brought_numbers(request)
            state.check_numbers(held)
            spec = replace(spec, grammar=_narrowed(masks, request, spec, model.info.vocab_size))
            generation = Generation(context, spec, _text(request, model, healing))
            generation.timeline = model.generations.begin(state.name, context.pending, asked)
        model.engine.submit(generation)
    closing.callback(lease.release)  # from here on closing the generation gives it back; before, `leased` did
    if healing is not None:
        entry.stand_from(healing.start)
    opened = OpenGeneration(
        generation, inputs, model.turns, closing, held, healing, _finished_check(state, request, compiled)
    )
    prompt, learns = list(context.tokens), request.program_speculation or request.candidates is not None
    return p.GenerationStarted(state.open_generation(opened), len(prompt), prompt if learns else [])


def _brought_numbers(request: p.StartGenerate) -> int:
    """Return as how many numbers of four bytes the long lists of a request count while its generation is open."""
    sampling = request.sampling
    tokens = len(request.predicted) + len(sampling.allowed_tokens)
    return TOKEN_NUMBERS * tokens + BIAS_NUMBERS * len(sampling.bias_tokens)


def _constrained(
    request: p.StartGenerate, compiled: Compiled, entry: OpenContext, closing: ExitStack
) -> tuple[p.StartGenerate, GrammarCursor, EndPlanner | None]:
    """Return the request with its ending settled, the masks of its constraint, and what plans its end."""
    model = entry.model
    reserved = reserved_tokens(request, model)
    request = settled_ending(request, compiled, entry.context, reserved)
    planner = end_planner(request, compiled, entry.context, reserved)
    matcher = compiled.matcher()
    closing.callback(compiled.learn, matcher)
    words, bounded = -(-model.info.vocab_size // 32), request.on_length != "cut"
    return request, GrammarCursor(matcher, words, model.tokenizer.eos_tokens, planner, bounded=bounded), planner


def _narrowed(
    masks: OutputMasks | None, request: p.StartGenerate, spec: GenerationSpec, vocab_size: int
) -> OutputMasks | None:
    """Return the masks without what the request allows no token of, and without ends that come too early."""
    allowed = set(request.sampling.allowed_tokens)
    if not allowed and not request.min_tokens:
        return masks
    if allowed and request.constraint is not None:
        allowed.update(spec.eos_tokens)  # where the text ends is the constraint's to say
    return NarrowedMasks(masks, vocab_size, allowed=allowed, ends=spec.ends, least=request.min_tokens)


@contextmanager
def _undone_on_error(context: CachedSequence, healing: Healing | None) -> Iterator[ExitStack]:
    """Cut the context where it is healed. If the body raises, put its end back, and what the last generation left with it."""
    with ExitStack() as undo:
        undo.callback(setattr, context, "memory", context.memory)
        if healing is not None:
            undo.callback(healing.restore)
            healing.cut()
        yield undo
        undo.pop_all()


def _spec(
    request: p.StartGenerate,
    model: ServedModel,
    sampler: RowSampler,
    masks: OutputMasks | None,
    sources: SourceSet | None,
) -> GenerationSpec:
    return GenerationSpec(
        sampler=sampler,
        max_tokens=request.max_tokens,
        eos_tokens=model.tokenizer.eos_tokens,
        stop_tokens=frozenset(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        grammar=masks,
        sources=sources,
        paced=request.program_speculation or request.program_constraint or request.candidates is not None,
        priority=request.priority,
        logprobs=request.logprobs,
        logprob_tokens=tuple(request.logprob_tokens),
        choice=None if request.candidates is None else ProgramChoice(request.candidates, sampler),
        probes=StepProbes.resolve(
            request.probes, 1 if sources is None else 1 + sources.max_draft, model.info.vocab_size
        ),
    )


def _text(request: p.StartGenerate, model: ServedModel, healing: Healing | None) -> TextAssembler:
    """Return what turns the output's tokens into text, behind the healed end of the prompt."""
    decode = shown_decoder(model, request.shown)
    decode = decode if healing is None else healing.behind(decode)
    return TextAssembler(decode, request.stop, request.min_tokens, include_stop=request.include_stop)


def _finished_check(state: SessionState, request: p.StartGenerate, compiled: Compiled | None) -> BestEffortCheck | None:
    """Return the check of the finished text; None where the masks hold all of the constraint."""
    if compiled is None or request.constraint is None or not request.constraint.best_effort:
        return None
    return BestEffortCheck(compiled, at_once if state.compiles is None else partial(state.compiles.run, state.tenant))
