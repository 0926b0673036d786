"""``grammar.*``: grammars and matchers for a program's own decode loop."""

from __future__ import annotations

from inferd import protocol as p
from inferd_grammar import Compiled
from inferd_runtime.session.constraints.compile_call import when_compiled
from inferd_runtime.session.constraints.held_grammars import HeldGrammar, HeldMatcher
from inferd_runtime.session.generation.finished_text import checked_keywords
from inferd_runtime.session.state import Call, SessionState


def compile_grammar(state: SessionState, call: Call) -> None:
    """Compile a grammar and answer with its handle."""
    request: p.CompileGrammar = call.request
    p.check_constraint(request.constraint)
    model = state.model(request.model)

    def opened(compiled: Compiled) -> p.CompiledGrammar:
        may_end = compiled.matcher().may_end()
        handle = state.grammars.add_grammar(HeldGrammar(compiled, model))
        return p.CompiledGrammar(handle, may_end, checked_keywords(compiled))

    when_compiled(state, call, model, request.constraint, opened)


def open_matcher(state: SessionState, call: Call) -> None:
    """Open a matcher at the start of a grammar's text."""
    request: p.OpenMatcher = call.request
    grammar = state.grammars.grammar(request.grammar)
    opened = HeldMatcher(grammar.compiled.matcher(), grammar.model)
    call.respond(_state(state.grammars.add_matcher(opened), opened))


def accept(state: SessionState, call: Call) -> None:
    """Take tokens up to the first illegal one."""
    request: p.AcceptTokens = call.request
    p.check_accept(request)
    opened = state.grammars.matcher(request.matcher)
    state.grammars.check_tokens(opened, len(request.tokens))
    taken = opened.accept(request.tokens)
    call.respond(_state(request.matcher, opened, taken))


def mask(state: SessionState, call: Call) -> None:
    """Answer with the tokens that may come next."""
    request: p.GetMask = call.request
    call.respond(state.grammars.matcher(request.matcher).mask())


def rollback(state: SessionState, call: Call) -> None:
    """Undo the last tokens."""
    request: p.RollbackMatcher = call.request
    p.check_rollback(request)
    opened = state.grammars.matcher(request.matcher)
    if request.count > opened.matcher.depth:
        raise p.InvalidRequest(f"rollback of {request.count} tokens: the matcher holds {opened.matcher.depth}")
    opened.matcher.rollback(request.count)
    call.respond(_state(request.matcher, opened))


def forced(state: SessionState, call: Call) -> None:
    """Answer with the text and tokens that must come next."""
    request: p.GetForced = call.request
    call.respond(state.grammars.matcher(request.matcher).forced())


def fork(state: SessionState, call: Call) -> None:
    """Copy a matcher."""
    request: p.ForkMatcher = call.request
    opened = state.grammars.matcher(request.matcher)
    state.grammars.check_tokens(opened, opened.matcher.depth)
    copy = opened.fork()
    call.respond(_state(state.grammars.add_matcher(copy), copy))


def release(state: SessionState, call: Call) -> None:
    """Release a grammar or a matcher."""
    request: p.ReleaseGrammar = call.request
    state.grammars.release(request.handle)
    call.respond(p.Done())


def _state(handle: int, opened: HeldMatcher, accepted: int = 0) -> p.MatcherState:
    matcher = opened.matcher
    return p.MatcherState(handle, matcher.depth, matcher.may_end(), matcher.ended(), accepted)


HANDLERS = {
    p.CompileGrammar: compile_grammar,
    p.OpenMatcher: open_matcher,
    p.AcceptTokens: accept,
    p.GetMask: mask,
    p.RollbackMatcher: rollback,
    p.GetForced: forced,
    p.ForkMatcher: fork,
    p.ReleaseGrammar: release,
}
