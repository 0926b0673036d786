"""A runtime in memory, for tests of programs: no model, no process, no network.

with FakeRuntime(["Hello!"]) as runtime:
    assert await Context().user("Hi").generate(Sampler.argmax()).collect_text() == "Hello!"
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from inferd import protocol as p
from inferd.testing.scripted import EOS, ScriptedGeneration
from inferd.transport import restore_transport, use_transport

__all__ = ["EOS", "MODEL", "FakeRuntime", "decode", "render"]
ROLES = {"system": 257, "user": 258, "assistant": 259}
CHAT_ROLES = ROLES | {"developer": 257, "tool": 258}
END_OF_TURN = 260
MODEL = p.ModelInfo("fake", END_OF_TURN + 1, 1 << 16, 16, [EOS], "0" * 16)


class FakeRuntime:
    """Answers the operations of ``inferd.protocol`` as its script says; a :class:`~inferd.transport.Transport`.

    In its ``with`` block it is the runtime in force.

    Tokens are the bytes of UTF-8, and a few ids above 255 for the chat format. ``outputs`` are the texts that
    generations bring, one each, in order; or a function of the context's tokens that gives the text. A text longer
    than ``max_tokens`` ends with finish ``length``, a shorter one with ``stop``. ``steps`` are the tokens of each
    step, and ``replies`` the steps of each reply, both used round and round: a step of several tokens counts as a draft of
    the runtime's own (``ngram``). Of a program's own drafts, and of what ``predict=`` says, stands what agrees with the text.

    Constraints and sampling are recorded, not applied, and a program's own sampler is not asked: the text is what you say. A
    program's own constraint is asked, and a text that its masks do not allow ends with ConstraintError. ``problem`` says what is
    wrong with the finished text of a best_effort constraint (None: nothing).

    ``requests`` holds every request in order. ``failures`` maps an operation's name to errors, raised one at a time;
    ``answers`` maps one to a function from the request to its reply, for operations that the script does not know
    (``forward``, grammars, snapshots, adapters, ...) or knows otherwise. ``inbox`` is what ``session.receive`` brings,
    ``outbox`` what ``session.send`` took, ``contexts`` the tokens of each context. Handles that do not exist raise
    NotFound, and a context that is generated on refuses every other operation, as in the runtime.
    """

    def __init__(
        self,
        outputs: Sequence[str] | Callable[[list[int]], str] = (),
        *,
        steps: Sequence[int] = (1,),
        replies: Sequence[int] = (1,),
        problem: Callable[[str], str | None] = lambda text: None,
    ) -> None:
        self.requests: list[Any] = []
        self.failures: dict[str, deque[p.InferdError]] = {}
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.inbox: deque[Any] = deque()
        self.outbox: list[Any] = []
        self.contexts: dict[int, list[int]] = {}
        self._outputs = outputs if callable(outputs) else _in_order(outputs)
        self._steps = tuple(steps)
        self._replies = itertools.cycle(replies)
        self._problem = problem
        self._restore: list[Any] = []
        self._handles = itertools.count(1)
        self._generations: dict[int, ScriptedGeneration] = {}
        self._handlers: dict[type[Any], Callable[[Any], Any]] = {
            p.ListModels: lambda _: p.Models([MODEL]),
            p.Tokenize: lambda request: p.Tokens(list(request.text.encode())),
            p.Detokenize: lambda request: p.Text(decode(request.tokens)),
            p.RenderChat: lambda request: p.RenderedChat(render_chat(request)),
            p.GetChatFormat: lambda _: p.ChatFormat(True, "json", "", "", True),
            p.CreateContext: self._create,
            p.AppendContext: self._append,
            p.FlushContext: lambda request: self._append(p.AppendContext(request.context, [])),
            p.ForkContext: self._fork,
            p.TruncateContext: self._truncate,
            p.ContextTokens: lambda request: p.Tokens(self._tokens(request.context)[request.start :]),
            p.ReleaseContext: self._release,
            p.StartGenerate: self._start,
            p.NextSteps: self._next,
            p.CloseGenerate: self._close,
            p.SendMessage: self._send,
            p.ReceiveMessage: self._receive,
        }

    def __enter__(self) -> Self:
        self._restore.append(use_transport(self))
        return self

    def __exit__(self, *error: object) -> None:
        restore_transport(self._restore.pop())

    async def call(self, request: Any) -> Any:
        """Answer one request, after other tasks had their turn."""
        self.requests.append(request)
        await asyncio.sleep(0)
        failures = self.failures.get(request.op)
        if failures:
            raise failures.popleft()
        answer = self.answers.get(request.op) or self._handlers.get(type(request))
        if answer is None:
            raise p.InvalidRequest(f"the fake runtime has no answer to {request.op}: put one into its answers")
        return answer(request)

    def of_kind(self, kind: type[Any]) -> list[Any]:
        """Return the requests of one type, in order."""
        return [request for request in self.requests if type(request) is kind]

    def _create(self, request: p.CreateContext) -> p.ContextState:
        if request.model not in ("", MODEL.name):
            raise p.NotFound(f"no model {request.model!r}")
        return self._open([])

    def _append(self, request: p.AppendContext) -> p.ContextState:
        tokens = self._tokens(request.context)
        tokens += [token for part in request.parts for token in render(part)]
        return self._state(request.context)

    def _fork(self, request: p.ForkContext) -> p.ContextState:
        tokens = self._tokens(request.context, free=False)
        if not -1 <= request.length <= len(tokens):
            raise p.InvalidRequest(f"length {request.length} is above {len(tokens)}")
        return self._open(tokens[: request.length] if request.length >= 0 else list(tokens))

    def _truncate(self, request: p.TruncateContext) -> p.ContextState:
        tokens = self._tokens(request.context)
        if request.length > len(tokens):
            raise p.InvalidRequest(f"length {request.length} is above {len(tokens)}")
        del tokens[request.length :]
        return self._state(request.context)

    def _release(self, request: p.ReleaseContext) -> p.Done:
        self._tokens(request.context)
        del self.contexts[request.context]
        return p.Done()

    def _start(self, request: p.StartGenerate) -> p.GenerationStarted:
        tokens = self._tokens(request.context)
        prompt = list(tokens)
        handle = next(self._handles)
        self._generations[handle] = ScriptedGeneration(request, tokens, self._outputs(prompt), self._steps)
        return p.GenerationStarted(handle, len(prompt), prompt if request.program_speculation else [])

    def _next(self, request: p.NextSteps) -> p.Steps:
        generation = self._generation(request.generation)
        steps = generation.steps(request, next(self._replies))
        problem = self._problem_of(generation) if generation.ended else None
        if problem is not None and not steps:  # the error comes behind the last step
            raise p.ConstraintViolated(f"the output is not valid: {problem}", problem=problem, pointer="")
        finish = generation.finish if generation.ended and problem is None else ""
        closed = [self._close(p.CloseGenerate(request.generation))] if finish and request.closes else []
        return p.Steps(steps, finish, context=closed)

    def _problem_of(self, generation: ScriptedGeneration) -> str | None:
        constraint = generation.request.constraint
        if generation.finish != "stop" or constraint is None or not constraint.best_effort:
            return None
        return self._problem(decode(generation.output))

    def _close(self, request: p.CloseGenerate) -> p.ContextState:
        generation = self._generation(request.generation)
        generation.keep(request.keep)
        del self._generations[request.generation]
        return self._state(generation.request.context)

    def _send(self, request: p.SendMessage) -> p.Done:
        self.outbox.append(request.message)
        return p.Done()

    def _receive(self, request: p.ReceiveMessage) -> p.Received:
        if not self.inbox:
            raise p.Unavailable("nobody sends anything")
        return p.Received(self.inbox.popleft())

    def _open(self, tokens: list[int]) -> p.ContextState:
        handle = next(self._handles)
        self.contexts[handle] = tokens
        return self._state(handle)

    def _state(self, context: int) -> p.ContextState:
        return p.ContextState(context, len(self.contexts[context]), min(1, len(self.contexts[context])))

    def _tokens(self, context: int, *, free: bool = True) -> list[int]:
        if context not in self.contexts:
            raise p.NotFound(f"no context {context}")
        if free and any(generation.request.context == context for generation in self._generations.values()):
            raise p.InvalidRequest("the context is being generated on")
        return self.contexts[context]

    def _generation(self, handle: int) -> ScriptedGeneration:
        if handle not in self._generations:
            raise p.NotFound(f"no generation {handle}")
        return self._generations[handle]


def render(part: p.Part) -> list[int]:
    """Return the tokens of a part in the fake chat format: role, bytes, end of turn."""
    match part.kind:
        case "message":
            return [ROLES[part.role], *part.text.encode(), END_OF_TURN]
        case "text":
            return list(part.text.encode())
        case "tokens":
            return list(part.tokens)
        case "cue":
            return [ROLES["assistant"]]
    raise p.InvalidRequest(f"no part of kind {part.kind!r}")


def render_chat(request: p.RenderChat) -> list[int]:
    """Return the tokens of a conversation in the fake chat format. Tools and their calls are left out."""
    p.check_render_chat(request)
    tokens: list[int] = []
    for message in request.messages:
        tokens += [CHAT_ROLES[message["role"]], *(message.get("content") or "").encode(), END_OF_TURN]
    if request.continue_final:
        return tokens[:-1]
    return [*tokens, ROLES["assistant"]] if request.cue else tokens


def decode(tokens: Sequence[int]) -> str:
    """Return the text of fake tokens, without those of the chat format."""
    return bytes(token for token in tokens if token < EOS).decode(errors="replace")


def _in_order(outputs: Sequence[str]) -> Callable[[list[int]], str]:
    left = iter(outputs)

    def following(tokens: list[int]) -> str:
        for output in left:
            return output
        raise p.InvalidRequest("the fake runtime has no output left")

    return following
