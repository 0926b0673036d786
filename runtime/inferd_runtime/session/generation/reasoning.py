"""Reasoning before a constrained text: its marks as tokens of a model, and the tokens that it leaves to the text."""

from __future__ import annotations

from inferd import protocol as p
from inferd_grammar import EndPlanner
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.jobs.reasoning import ReasoningFirst, ReasoningMarkTokens
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.served_model import ServedModel


def with_reasoning(
    masks: OutputMasks | None,
    request: p.StartGenerate,
    model: ServedModel,
    context: CachedSequence,
    planner: EndPlanner | None,
) -> OutputMasks | None:
    """Return masks that let the model think first, if the request says so.

    Where the text is to be complete when its tokens are used up, the reasoning ends early enough for its shortest end. A text
    that may be empty needs none of that.
    """
    spec = request.reasoning
    if spec is None or (masks is None and spec.budget is None):
        return masks
    marks = marks_of(spec, model)
    budget = spec.budget
    if planner is not None and planner.needed and request.on_length != "cut":
        room = min(request.max_tokens, context.max_length - len(context.tokens))
        left = max(0, room - planner.needed - marks.most_tokens)
        budget = left if budget is None else min(budget, left)
    return ReasoningFirst(masks, marks, opened=spec.opened, budget=budget)


def reserved_tokens(request: p.StartGenerate, model: ServedModel) -> int:
    """Return how many tokens the marks of the reasoning may need, beside a constrained text."""
    return 0 if request.reasoning is None else marks_of(request.reasoning, model).most_tokens


def marks_of(spec: p.ReasoningSpec, model: ServedModel) -> ReasoningMarkTokens:
    """Return the marks as tokens. Raises InvalidRequest for a mark that no tokens write."""
    known = model.reasoning_marks
    key = (spec.begin, spec.end)
    if key not in known:
        known.clear()  # a model has one pair
        begin, end = (tuple(model.tokenizer.encode(mark, special=True)) for mark in key)
        table = model.grammars.table
        marks = ReasoningMarkTokens(
            (spec.begin, begin), (spec.end, end), table.tokens, model.bytes_of, model.tokenizer.eos_tokens
        )
        for mark, tokens in ((marks.begin, begin), (marks.end, end)):
            if not b"".join(map(model.bytes_of, tokens)).endswith(mark):
                raise p.InvalidRequest(f"reasoning: no tokens of this model write {p.cut(mark.decode(), 50)!r}")
        known[key] = marks
    return known[key]
