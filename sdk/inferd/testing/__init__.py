"""A runtime in memory, for tests of programs: no model, no process, no network.

runtime = FakeRuntime(["Hello!"])
token = use_transport(runtime)      # from inferd.transport
assert await Context().user("Hi").generate(Sampler.argmax()).collect_text() == "Hello!"
restore_transport(token)
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from inferd import protocol as p
from inferd.masks import TokenMask
from inferd.testing.grammars import FakeGrammars
from inferd.testing.rows import STATE_SIZE, FakeRows, embed
from inferd.testing.speculation import FakeVerifying, check_tree, counted, prediction, walk
from inferd.transport import restore_transport, use_transport

EOS = 256
ROLES = {"system": 257, "user": 258, "assistant": 259}
END_OF_TURN = 260
VOCAB_SIZE = 261
MAX_CONTEXT = 1 << 16
ROWS = FakeRows(VOCAB_SIZE, EOS)
MODEL = p.ModelInfo("fake", VOCAB_SIZE, MAX_CONTEXT, 16, [EOS], "0" * 16)


@dataclass
class _Generation:
    """One generation; ``made`` tokens of ``output`` are in the context. ``end_due``: end-of-text needs a step of its own."""

    request: p.StartGenerate
    context: int
    start: int
    output: list[int]
    finish: str
    sizes: Iterator[int]
    made: int = 0
    pending: bytes = b""
    delivered: list[int] = field(default_factory=list)
    end_due: bool = False


class FakeRuntime:
    """Answers the operations of ``inferd.protocol`` from memory; a :class:`~inferd.transport.Transport`.

    In its ``with`` block it is the runtime in force.

    Tokens are the bytes of UTF-8, and a few ids above 255 for the chat format. ``outputs`` are the texts that
    generations bring, one each, in order; or a function of the context's tokens that gives the text. A text longer
    than ``max_tokens`` ends with finish ``length``, a shorter one with ``stop``. ``steps`` are the tokens of each
    step, and ``replies`` the steps of each reply, both used round and round: a step of several tokens counts as a draft of
    the runtime's own (``ngram``). A program's own drafts, and what a generation is told with ``predict=``, are verified against
    the text instead. ``verify`` says the next output step by step, and end-of-text behind it.

    Constraints and sampling are recorded, not applied: the text is what you say. A program's own constraint is asked, and
    a text that its masks do not allow ends with ConstraintError. Log-probabilities are those of ``forward``. ``problem``
    says what is wrong with the finished text of a best_effort constraint (None: nothing). Of grammars only choices are
    known; all others allow any text.

    Rows of ``forward`` come from a model that likes the end of text a little better than all other tokens, with mask, bias
    and probes applied; where tokens stand and what they see is recorded only. ``requests`` holds every request in
    order. ``failures`` maps an operation's name to errors, raised one at a time. ``inbox`` is what ``session.receive``
    brings, ``outbox`` what ``session.send`` took. ``adapters`` are the LoRA adapters by name; they change nothing.
    ``saved`` are the tokens of saved contexts, by name.
    Handles that do not exist raise NotFound, a context that is generated on refuses every other operation, as in the
    runtime.
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
        self.inbox: deque[Any] = deque()
        self.outbox: list[Any] = []
        self.contexts: dict[int, list[int]] = {}
        self.saved: dict[str, list[int]] = {}
        self.adapters: dict[str, p.AdapterInfo] = {}
        self._uploads: dict[int, int] = {}
        self._restore: list[Any] = []
        self._outputs = outputs if callable(outputs) else _in_order(outputs)
        self._steps = tuple(steps)
        self._problem = problem
        self._replies = itertools.cycle(replies)
        self._handles = itertools.count(1)
        self._generations: dict[int, _Generation] = {}
        self.grammars = FakeGrammars(EOS, self._handles)
        verifying = FakeVerifying(self._outputs, EOS, VOCAB_SIZE)
        self._handlers: dict[type[Any], Callable[[Any], Any]] = {
            p.ListModels: lambda _: p.Models([MODEL]),
            p.Tokenize: lambda request: p.Tokens(list(request.text.encode())),
            p.Detokenize: lambda request: p.Text(decode(request.tokens)),
            p.CreateContext: self._create,
            p.AppendContext: self._append,
            p.FlushContext: lambda request: self._state(self._free(request.context)),
            p.ForkContext: self._fork,
            p.TruncateContext: self._truncate,
            p.ContextTokens: lambda request: p.Tokens(self._tokens(request.context)[request.start :]),
            p.ReleaseContext: self._release,
            p.Forward: self._forward,
            p.PromptLogprobs: self._prompt_logprobs,
            p.Embed: self._embed,
            p.VerifyDraft: lambda request: verifying.verify(request, self._tokens(request.context)),
            p.StartGenerate: self._start,
            p.NextSteps: self._next,
            p.CloseGenerate: self._close,
            p.SendMessage: self._send,
            p.ReceiveMessage: self._receive,
            p.UploadAdapter: self._upload_adapter,
            p.LoadAdapter: self._load_adapter,
            p.ListAdapters: lambda _: p.Adapters(list(self.adapters.values())),
            p.DropAdapter: self._drop_adapter,
            p.SaveContext: self._save,
            p.OpenSaved: lambda request: self._opened(self._find_saved(request.name)),
            p.TakeSaved: self._take,
            p.DeleteSaved: self._delete,
            p.ListSaved: lambda _: p.SavedContexts([_told(*item) for item in sorted(self.saved.items())]),
            p.ExportContext: lambda request: p.Exported(json.dumps(self._tokens(request.context)).encode()),
            p.ImportContext: self._import,
            **self.grammars.handlers,
        }

    def __enter__(self) -> Self:
        self._restore.append(use_transport(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore_transport(self._restore.pop())

    async def call(self, request: Any) -> Any:
        """Answer one request, after other tasks had their turn."""
        self.requests.append(request)
        await asyncio.sleep(0)
        failures = self.failures.get(request.op)
        if failures:
            raise failures.popleft()
        if type(request) not in self._handlers:
            raise p.InvalidRequest(f"the fake runtime does not answer {request.op}")
        if getattr(request, "adapter", "") not in ("", *self.adapters):
            raise p.NotFound(f"no adapter {request.adapter!r}")
        return self._handlers[type(request)](request)

    def of_kind(self, kind: type[Any]) -> list[Any]:
        """The requests of one type, in order."""
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
        if request.context not in self.contexts:
            raise p.NotFound(f"no context {request.context}")
        tokens = self.contexts[request.context]
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
        del self.contexts[self._free(request.context)]
        return p.Done()

    def _forward(self, request: p.Forward) -> p.ForwardResult:
        tokens = self._tokens(request.context)
        tokens += request.tokens
        return p.ForwardResult(ROWS.results(request), len(tokens))

    def _prompt_logprobs(self, request: p.PromptLogprobs) -> p.TokenLogprobs:
        tokens = self._tokens(request.context)
        scores = ROWS.scores(request.tokens, request.top, first=not tokens)
        tokens += request.tokens
        return p.TokenLogprobs(scores, len(tokens))

    def _embed(self, request: p.Embed) -> p.Embeddings:
        inputs = [*(list(text.encode()) for text in request.texts), *request.tokens]
        return p.Embeddings(STATE_SIZE, [embed(each, request.pooling, request.normalize) for each in inputs])

    def _start(self, request: p.StartGenerate) -> p.GenerationStarted:
        tokens = self._tokens(request.context)
        output = self._outputs(list(tokens)).encode()
        ends = [end for end in (output.find(stop.encode()) for stop in request.stop) if end >= 0]
        output = output[: min(ends)] if ends else output
        finish = "length" if len(output) > request.max_tokens else "stop"
        made = _Generation(
            request,
            request.context,
            len(tokens),
            list(output[: request.max_tokens]),
            finish,
            itertools.cycle(self._steps),
            end_due=request.program_constraint and finish == "stop",
        )
        handle = next(self._handles)
        self._generations[handle] = made
        return p.GenerationStarted(handle, len(tokens), list(tokens) if request.program_speculation else [])

    def _next(self, request: p.NextSteps) -> p.Steps:
        made = self._generation(request.generation)
        if made.request.program_speculation:
            self._check_draft(made, request)
            steps = [self._verify(made, request.draft, request.parents, "program")]
        elif made.request.program_constraint:
            steps = [self._masked(made, request)]
        else:
            steps = [self._own_step(made) for _ in range(next(self._replies)) if self._goes_on(made)]
        if self._goes_on(made):
            return p.Steps(steps)
        return self._ended(made, steps)

    def _ended(self, made: _Generation, steps: list[p.Step]) -> p.Steps:
        constraint = made.request.constraint
        if made.finish == "stop" and constraint is not None and constraint.best_effort:
            problem = self._problem(decode(made.output))
            if problem is not None and steps:
                return p.Steps(steps)  # the error comes behind the last step
            if problem is not None:
                raise p.ConstraintViolated(f"the output is not valid: {problem}", problem=problem, pointer="")
        return p.Steps(steps, made.finish)

    def _masked(self, made: _Generation, request: p.NextSteps) -> p.Step:
        token = [*made.output[made.made :], EOS][0]
        free = request.mask is None and not request.mask_bits
        if not free and token not in TokenMask.from_wire(request.mask or [], request.mask_bits):
            raise p.ConstraintError(f"the mask does not allow token {token}, which comes next in the output")
        if made.made < len(made.output):
            return self._step(made, 1, [])
        made.end_due = False
        return p.Step([])

    def _check_draft(self, made: _Generation, request: p.NextSteps) -> None:
        start = len(self.contexts[made.context])
        depths = check_tree(request.draft, request.parents, VOCAB_SIZE)
        if request.positions != [start + depth for depth in depths]:
            raise p.InvalidRequest(f"positions must start at {start}")

    def _own_step(self, made: _Generation) -> p.Step:
        predicted = prediction(made.request.predicted, made.request.predicted_text, made.output, made.made)
        if predicted:
            return self._verify(made, predicted, [], "predicted")
        size = min(next(made.sizes), len(made.output) - made.made)
        return self._step(made, size, counted("ngram", size - 1, size - 1))

    def _verify(self, made: _Generation, draft: list[int], parents: list[int], source: str) -> p.Step:
        accepted = len(walk(draft, parents, made.output[made.made :]))
        return self._step(made, accepted + 1, counted(source, len(draft), accepted))

    def _step(self, made: _Generation, size: int, sources: list[p.SourceCount]) -> p.Step:
        tokens = made.output[made.made : made.made + size]
        made.made += len(tokens)
        self.contexts[made.context] += tokens
        made.pending += bytes(tokens)
        text = _whole_characters(made.pending) if self._goes_on(made) else made.pending.decode(errors="replace")
        made.pending = made.pending[len(text.encode()) :] if self._goes_on(made) else b""
        drafted, accepted = sum(one.drafted for one in sources), sum(one.accepted for one in sources)
        ended = made.finish == "stop" and not self._goes_on(made)
        truncated = max(0, 1 + accepted - len(tokens) - ended)
        top = made.request.logprobs
        scores = [] if top is None else ROWS.scores(tokens, top, first=False)
        return p.Step(tokens, text, drafted, accepted, truncated=truncated, sources=sources, logprobs=scores)

    def _goes_on(self, made: _Generation) -> bool:
        return made.made < len(made.output) or made.end_due

    def _close(self, request: p.CloseGenerate) -> p.ContextState:
        made = self._generation(request.generation)
        if request.keep >= 0:
            del self.contexts[made.context][made.start + request.keep :]
        del self._generations[request.generation]
        return self._state(made.context)

    def _send(self, request: p.SendMessage) -> p.Done:
        self.outbox.append(request.message)
        return p.Done()

    def _receive(self, request: p.ReceiveMessage) -> p.Received:
        if not self.inbox:
            raise p.Unavailable("nobody sends anything")
        return p.Received(self.inbox.popleft())

    def _upload_adapter(self, request: p.UploadAdapter) -> p.Upload:
        number = request.upload or next(self._handles)
        self._uploads[number] = self._uploads.get(number, 0) + len(request.data)
        return p.Upload(number, self._uploads[number])

    def _load_adapter(self, request: p.LoadAdapter) -> p.AdapterInfo:
        size = self._uploads.pop(request.upload)
        rank = int(json.loads(request.config).get("r", 8))
        self.adapters[request.name] = p.AdapterInfo(request.name, MODEL.name, rank, size, shared=False)
        return self.adapters[request.name]

    def _drop_adapter(self, request: p.DropAdapter) -> p.Done:
        if self.adapters.pop(request.name, None) is None:
            raise p.NotFound(f"no adapter {request.name!r}")
        return p.Done()

    def _save(self, request: p.SaveContext) -> p.SavedContext:
        if request.name in self.saved and not request.overwrite:
            raise p.InvalidRequest(f"there is a snapshot {request.name!r} already")
        self.saved[request.name] = list(self._tokens(request.context))
        return _told(request.name, self.saved[request.name])

    def _find_saved(self, name: str) -> list[int]:
        if name not in self.saved:
            raise p.NotFound(f"there is no snapshot {name!r}")
        return list(self.saved[name])

    def _take(self, request: p.TakeSaved) -> p.Opened:
        opened = self._opened(self._find_saved(request.name))
        del self.saved[request.name]
        return opened

    def _delete(self, request: p.DeleteSaved) -> p.Done:
        self._find_saved(request.name)
        del self.saved[request.name]
        return p.Done()

    def _import(self, request: p.ImportContext) -> p.Opened:
        try:
            return self._opened([int(token) for token in json.loads(request.data)])
        except (ValueError, TypeError):
            raise p.SnapshotDamaged("the snapshot is damaged") from None

    def _opened(self, tokens: list[int]) -> p.Opened:
        state = self._open(tokens)
        asked = [state.length] if _ends_with_question(tokens) else []
        return p.Opened(state.context, state.length, state.pending, state.length - state.pending, 0, asked)

    def _open(self, tokens: list[int]) -> p.ContextState:
        handle = next(self._handles)
        self.contexts[handle] = tokens
        return self._state(handle)

    def _state(self, context: int) -> p.ContextState:
        return p.ContextState(context, len(self.contexts[context]), min(1, len(self.contexts[context])))

    def _free(self, context: int) -> int:
        if context not in self.contexts:
            raise p.NotFound(f"no context {context}")
        if any(made.context == context for made in self._generations.values()):
            raise p.InvalidRequest("the context is being generated on")
        return context

    def _tokens(self, context: int) -> list[int]:
        return self.contexts[self._free(context)]

    def _generation(self, handle: int) -> _Generation:
        if handle not in self._generations:
            raise p.NotFound(f"no generation {handle}")
        return self._generations[handle]


def render(part: p.Part) -> list[int]:
    """The tokens of a part in the fake chat format: role, bytes, end of turn."""
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


def decode(tokens: Sequence[int]) -> str:
    """The text of fake tokens, without those of the chat format."""
    return bytes(token for token in tokens if token < EOS).decode(errors="replace")


def _told(name: str, tokens: list[int]) -> p.SavedContext:
    return p.SavedContext(name, MODEL.name, len(tokens), 4 * len(tokens), 0.0)


def _ends_with_question(tokens: list[int]) -> bool:
    """Whether a system or user message comes last."""
    roles = [token for token in tokens if token in ROLES.values()]
    return tokens[-1:] == [END_OF_TURN] and roles[-1] != ROLES["assistant"]


def _in_order(outputs: Sequence[str]) -> Callable[[list[int]], str]:
    left = deque(outputs)

    def following(tokens: list[int]) -> str:
        if not left:
            raise p.InvalidRequest("the fake runtime has no output left")
        return left.popleft()

    return following


def _whole_characters(data: bytes) -> str:
    """The text of ``data`` up to a character that is not complete yet."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
