"""A conversation, or any other run of tokens, in the runtime's KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, overload

from inferd.adapter import Adapter, adapter_name
from inferd.delivery import Plan
from inferd.generation import Generator
from inferd.handle import Handle, port_in_force
from inferd.model import Model
from inferd.passes import attention_runs, checked_bias, checked_mask, checked_positions, checked_rows, wire_probes
from inferd.probes import RowProbe, TokenLogprob
from inferd.protocol import (
    ContextTokens,
    FlushContext,
    Forward,
    InvalidRequest,
    Part,
    PromptLogprobs,
    Rows,
    TokenLogprobs,
    TruncateContext,
)
from inferd.sampling import Sampler
from inferd.schema import JsonSchema, OutputConstraint
from inferd.speculation import Speculator
from inferd.tokens import checked_tokens

T = TypeVar("T")
MAX_TOKENS = 256


class Context:
    """Tokens on a model, computed once and kept: chat messages, raw text, or token ids, and what was generated
    after them.

    ``model``: a name, a :class:`~inferd.Model`, or None for the default model of the runtime. Making one costs nothing;
    the runtime hears of it at the first operation that is awaited, over the connection in force when it was made (or,
    where there was none, at that moment).

    The filling methods (:meth:`system`, :meth:`user`, :meth:`assistant`, :meth:`cue`, :meth:`append`) only buffer,
    return the context itself, and are sent together by the next awaited operation. If the runtime refuses them
    then, they are dropped and the context stays as it was before.

    Release a context when you are done with it (:meth:`release`, or ``async with Context() as ctx:``). One that is
    garbage-collected is released before the next context is made, and what is left when a program ends or a script
    disconnects is released by the runtime. Every operation on a released context raises InvalidRequest. Operations
    may also raise whatever the runtime answers: NotFound for an unknown model, LimitExceeded for a context that
    would outgrow the model, Unavailable when the runtime is gone.
    """

    def __init__(self, model: str | Model | None = None) -> None:
        self._handle = Handle(port_in_force(), _model_name(model))

    def system(self, text: str) -> Context:
        """Add a system message, in the model's chat format."""
        return self._add(Part("message", role="system", text=_text("text", text)))

    def user(self, text: str) -> Context:
        """Add a user message, in the model's chat format. ``generate`` then starts the assistant's turn by itself."""
        return self._add(Part("message", role="user", text=_text("text", text)))

    def assistant(self, text: str) -> Context:
        """Add a whole assistant message, in the model's chat format, as if the model had said it."""
        return self._add(Part("message", role="assistant", text=_text("text", text)))

    def cue(self) -> Context:
        """Start the assistant's turn: what is appended or generated next is its beginning.

        ``generate`` does this by itself when the last thing added is a system or user message, and never otherwise.
        """
        return self._add(Part("cue"))

    def append(self, content: str | Sequence[int]) -> Context:
        """Add raw text, or token ids, as they are: no chat format, no special tokens."""
        if isinstance(content, str):
            return self._add(Part("text", text=content))
        return self._add(Part("tokens", tokens=checked_tokens("content", content)))

    @property
    def length(self) -> int:
        """How many tokens the runtime holds, delivered ones included. What is only buffered does not count yet."""
        return self._handle.length

    @property
    def released(self) -> bool:
        """Whether the context was released."""
        return self._handle.released

    async def flush(self, adapter: str | Adapter | None = None) -> Context:
        """Compute what was added (but for the last token, which the next generation computes), and return the
        context. ``adapter``: the LoRA adapter that the next generation will use.
        """
        request = FlushContext(0, adapter_name(adapter))
        context = await self._handle.settle()
        await self._handle.call(replace(request, context=context), keeps_turn=True)
        return self

    async def fork(self) -> Context:
        """A second context that holds the same tokens and shares what is computed. Release both.

        While a generation runs on this context, the second one holds what was delivered so far, and the generation
        goes on.
        """
        return Context._of(await self._handle.fork())

    async def truncate(self, length: int) -> Context:
        """Keep the first ``length`` tokens and forget the rest. Returns the context.

        Raises InvalidRequest for a negative length; the runtime refuses one above what the context holds.
        """
        _count("length", length)
        context = await self._handle.settle()
        await self._handle.call(TruncateContext(context, length))
        self._handle.restore_turn()
        return self

    async def tokens(self, start: int = 0) -> list[int]:
        """The token ids that the context holds, from index ``start``, with what is buffered."""
        _count("start", start)
        context = await self._handle.settle()
        reply = await self._handle.call(ContextTokens(context, start), keeps_turn=True)
        return list(reply.tokens)

    async def release(self) -> None:
        """Give the context's memory back. A second call does nothing."""
        await self._handle.release()

    async def forward(
        self,
        tokens: Sequence[int],
        at: Sequence[int] = (),
        sampler: Sampler | None = None,
        top: int = 0,
        *,
        probes: Sequence[RowProbe] = (),
        mask: Iterable[int] | None = None,
        bias: Mapping[int, float] | None = None,
        attention_mask: Sequence[Sequence[bool]] | None = None,
        positions: Sequence[int] | None = None,
        adapter: str | Adapter | None = None,
    ) -> Rows:
        """Append ``tokens``, compute everything pending, and look at the rows ``at``.

        ``at`` are indices into ``tokens``; empty means the last one. Each :class:`~inferd.protocol.RowResult` holds
        the token that ``sampler`` (argmax by default) draws after that row, the entropy of the distribution in
        nats, the ``top`` most likely tokens with their log-probabilities, and a result per probe, in the order of
        ``probes`` (:class:`~inferd.Logits`, :class:`~inferd.Distribution`, :class:`~inferd.Logprob`,
        :class:`~inferd.Logprobs`, :class:`~inferd.Entropy`). The drawn tokens are not appended.

        ``mask``: the token ids that are allowed; ``bias``: numbers added to the logits of some tokens. Everything
        in a row speaks of the logits after bias and mask.

        ``attention_mask``: one row of bools per token, over all tokens of the context (:attr:`length` of them once
        it is flushed) and ``tokens`` behind them: which of them it attends to. A token must see itself and may
        see nothing behind itself. None: all before. ``positions``: where each token stands for the model's
        position encoding; None: behind the token before. A sliding window counts positions. What is appended
        later sees everything before it and stands behind the last position given here. ``adapter``: as in
        :meth:`generate`.

        ``Rows.length`` is the context's new length. Raises InvalidRequest, which names the argument, for what is out of
        range, and LimitExceeded for more probed numbers than one reply carries.
        """
        ids, rows = checked_tokens("tokens", tokens), checked_rows(at, len(tokens))
        _count("top", top)
        bias_tokens, bias_values = checked_bias(bias)
        asked = Forward(
            0,
            ids,
            rows,
            _sampler(Sampler.argmax() if sampler is None else sampler).sampling,
            top,
            wire_probes(probes),
            checked_mask(mask),
            bias_tokens,
            bias_values,
            attention_runs(attention_mask, len(ids)),
            checked_positions(positions, len(ids)),
            adapter_name(adapter),
        )
        context = await self._handle.settle()
        reply: Rows = await self._handle.call(replace(asked, context=context))
        self._handle.learn_length(reply.length)
        return reply

    async def prompt_logprobs(
        self, tokens: Sequence[int], top: int = 0, *, adapter: str | Adapter | None = None
    ) -> list[TokenLogprob]:
        """Append ``tokens`` and tell how likely each one was, given all before it.

        One :class:`~inferd.TokenLogprob` per token: log-probability, rank, and the ``top`` most likely tokens at its
        place. The first token of an empty context has nothing before it and so no log-probability. The prompt may be as
        long as a context. ``adapter``: as in :meth:`generate`. Raises InvalidRequest for what is no token id, and
        LimitExceeded for more numbers than one reply carries.
        """
        ids = checked_tokens("tokens", tokens)
        _count("top", top)
        context = await self._handle.settle()
        reply: TokenLogprobs = await self._handle.call(PromptLogprobs(context, ids, top, adapter_name(adapter)))
        self._handle.learn_length(reply.length)
        return reply.tokens

    @overload
    def generate(
        self,
        sampler: Sampler,
        *,
        max_tokens: int = ...,
        stop: Sequence[str] = ...,
        constrain: JsonSchema[T],
        speculator: Speculator | None = ...,
        system_speculation: bool = ...,
        adapter: str | Adapter | None = ...,
        priority: int = ...,
    ) -> Generator[T]: ...

    @overload
    def generate(
        self,
        sampler: Sampler,
        *,
        max_tokens: int = ...,
        stop: Sequence[str] = ...,
        constrain: OutputConstraint | None = ...,
        speculator: Speculator | None = ...,
        system_speculation: bool = ...,
        adapter: str | Adapter | None = ...,
        priority: int = ...,
    ) -> Generator[Any]: ...

    def generate(
        self,
        sampler: Sampler,
        *,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
        constrain: OutputConstraint | None = None,
        speculator: Speculator | None = None,
        system_speculation: bool = False,
        adapter: str | Adapter | None = None,
        priority: int = 0,
    ) -> Generator[Any]:
        """Generate after the context's last token; what is delivered becomes part of the context.

        Returns at once; the generation starts when the first step is asked for. If the last thing added is a system or
        user message, the assistant's turn is cued first.

        ``max_tokens``: at most this many, at least 1. ``stop``: end before the first of these texts; they are not
        part of the output. ``constrain``: the output matches a :class:`~inferd.JsonSchema`, :class:`~inferd.Regex`,
        :class:`~inferd.AnyJson` or :class:`~inferd.Choice`. ``system_speculation``: the runtime drafts tokens ahead
        by itself. ``speculator``: the program drafts, see :class:`~inferd.Speculator`. Neither changes which text
        comes, only how fast; they exclude each other. ``adapter``: compute with this LoRA adapter, the context's earlier
        tokens too: those that were computed without it, or with another, are computed again.
        ``priority``, from -3 to 3: each step up doubles its share of what your tenant gets; other tenants notice nothing.
        Raises InvalidRequest, which names the argument, for one that is out of range, and ValueError for both kinds of
        speculation at once.
        """
        if speculator is not None and system_speculation:
            raise ValueError("speculator= and system_speculation=True exclude each other: pass one of them")
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be a whole number of at least 1, not {max_tokens!r}")
        self._handle.check()
        plan = Plan(
            sampling=_sampler(sampler).sampling,
            max_tokens=max_tokens,
            stop=_stop(stop),
            constrain=_constrain(constrain),
            speculator=_speculator(speculator),
            system_speculation=_flag("system_speculation", system_speculation),
            adapter=adapter_name(adapter),
            priority=_priority(priority),
        )
        return Generator(self._handle, plan)

    async def __aenter__(self) -> Context:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    @classmethod
    def _of(cls, handle: Handle) -> Context:
        context = cls.__new__(cls)
        context._handle = handle
        return context

    def _add(self, part: Part) -> Context:
        self._handle.add(part)
        return self


def _model_name(model: str | Model | None) -> str:
    if model is None:
        return ""
    if isinstance(model, Model):
        return model.name
    return _text("model", model)


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}")
    return value


def _count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"{name} must be a whole number of at least 0, not {value!r}")


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -3 <= value <= 3:
        raise InvalidRequest(f"priority must be a whole number from -3 to 3, not {value!r}")
    return value


def _flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, not {value!r}")
    return value


def _sampler(sampler: Sampler) -> Sampler:
    if not isinstance(sampler, Sampler):
        raise InvalidRequest(f"sampler must be a Sampler, such as Sampler.argmax(), not {sampler!r}")
    return sampler


def _stop(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str) or not isinstance(stop, Sequence):
        raise InvalidRequest(f"stop must be a list of strings, not {stop!r}")
    if not all(isinstance(text, str) and text for text in stop):
        raise InvalidRequest(f"stop must hold strings that are not empty, not {list(stop)!r}")
    return tuple(stop)


def _constrain(constrain: OutputConstraint | None) -> OutputConstraint | None:
    if constrain is not None and not isinstance(constrain, OutputConstraint):
        raise InvalidRequest(f"constrain must be a JsonSchema, Regex, AnyJson or Choice, not {constrain!r}")
    return constrain


def _speculator(speculator: Speculator | None) -> Speculator | None:
    if speculator is not None and not isinstance(speculator, Speculator):
        raise InvalidRequest(f"speculator must be an instance of a Speculator subclass, not {speculator!r}")
    return speculator
