"""``Context``: a conversation, or any other run of tokens, in the runtime's KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from inferd.adapter import Adapter, adapter_name
from inferd.attention import AttentionMask
from inferd.calls.arguments import (
    CycleCallback,
    checked_chooser,
    checked_cycle,
    checked_flag,
    checked_on_length,
    checked_reasoning,
    checked_sampler,
    checked_speculator,
    checked_texts,
    model_name,
    snapshot_name,
)
from inferd.calls.context_handle import ContextHandle, port_in_force
from inferd.calls.forward_arguments import (
    attention_runs,
    checked_bias,
    checked_draft,
    checked_positions,
    wire_mask,
    wire_probes,
)
from inferd.calls.generate_arguments import GenerateArguments, OnLength
from inferd.constraints import StepConstraint, checked_constraint
from inferd.custom_sampler import ChooseToken, CustomSampler
from inferd.generation import Generator
from inferd.model import Model
from inferd.probes import RowProbe
from inferd.protocol import (
    ContextTokens,
    DeleteSaved,
    ExportContext,
    FlushContext,
    Forward,
    ForwardResult,
    ImportContext,
    InferdError,
    InvalidRequest,
    ListSaved,
    OpenSaved,
    Part,
    PromptLogprobs,
    ReasoningSpec,
    SaveContext,
    SavedContext,
    TakeSaved,
    TokenLogprobs,
    TruncateContext,
    Verification,
    VerifyDraft,
    check_context_tokens,
    check_forward,
    check_import,
    check_prompt_logprobs,
    check_start_generate,
    check_truncate,
    check_verify,
)
from inferd.protocol.passes import TokenLogprob
from inferd.protocol.texts import checked_text
from inferd.protocol.tokens import checked_tokens
from inferd.sampling import Sampler
from inferd.schema import JsonSchema, OutputConstraint
from inferd.spec_config import Prediction, RuntimeDrafts, SystemSpeculation
from inferd.speculation import Speculator
from inferd.transport import current_transport

# The standard library's type variables have defaults from Python 3.13 on only, and nothing else is imported here.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from inferd.tools.run import ToolLike, ToolOptions, ToolRun

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

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

    ``cache_salt``: contexts share what is computed of a common beginning only where this is the same, so that nobody can find
    out by timing what stands in a context of another salt. Forks and saved copies keep it.

    Release a context when you are done with it (:meth:`release`, or ``async with Context() as ctx:``). One that is
    garbage-collected is released before the next context is made, and what is left when a program ends or a script
    disconnects is released by the runtime. Every operation on a released context raises InvalidRequest. Operations
    may also raise whatever the runtime answers: NotFound for an unknown model, LimitExceeded for a context that
    would outgrow the model, Unavailable when the runtime is gone.
    """

    def __init__(self, model: str | Model | None = None, *, cache_salt: str = "") -> None:
        salt = checked_text("cache_salt", cache_salt)
        self._handle = ContextHandle(port_in_force(), model_name(model), cache_salt=salt)

    def system(self, text: str) -> Context:
        """Add a system message, in the model's chat format."""
        return self._add(Part("message", role="system", text=checked_text("text", text)))

    def user(self, text: str) -> Context:
        """Add a user message, in the model's chat format. ``generate`` then starts the assistant's turn by itself."""
        return self._add(Part("message", role="user", text=checked_text("text", text)))

    def assistant(self, text: str) -> Context:
        """Add a whole assistant message, in the model's chat format, as if the model had said it."""
        return self._add(Part("message", role="assistant", text=checked_text("text", text)))

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
        """Number of tokens that the runtime holds, delivered ones included. What is only buffered does not count yet."""
        return self._handle.length

    @property
    def released(self) -> bool:
        """True if the context was released."""
        return self._handle.released

    async def flush(self, adapter: str | Adapter | None = None) -> Context:
        """Compute what was added (except the last token, which the next generation computes), and return the
        context. ``adapter``: the LoRA adapter that the next generation will use.
        """
        await self._handle.ask(FlushContext(0, adapter_name(adapter)))
        return self

    async def fork(self) -> Context:
        """Return a second context that holds the same tokens and shares what is computed. Release both.

        While a generation runs on this context, the second one holds what was delivered so far, and the generation
        goes on.
        """
        return Context._of(await self._handle.fork())

    async def truncate(self, length: int) -> Context:
        """Keep the first ``length`` tokens and forget the rest. Returns the context.

        Raises InvalidRequest for a negative length; the runtime refuses one above what the context holds.
        """
        check_truncate(TruncateContext(0, length))
        await self._handle.truncate(length)
        return self

    async def tokens(self, start: int = 0) -> list[int]:
        """Return the token ids that the context holds, from index ``start``, with what is buffered."""
        asked = ContextTokens(0, start)
        check_context_tokens(asked)
        return list((await self._handle.ask(asked)).tokens)

    async def release(self) -> None:
        """Give the context's memory back. Whoever waits for something of it gets InvalidRequest. A second call does nothing."""
        await self._handle.release()

    @property
    def restored(self) -> int:
        """Of an opened context: how many tokens' KV was read back."""
        return self._handle.restored

    @property
    def recomputed(self) -> int:
        """Of an opened context: how many tokens that were computed when it was saved have to be computed again."""
        return self._handle.recomputed

    async def save(self, name: str, *, overwrite: bool = False) -> SavedContext:
        """Keep a copy of the context under ``name``, for :meth:`open`; it survives a restart of the runtime.

        The context stays as it is and can be used at once. While a generation runs on it, the copy holds what was delivered so
        far, and the generation goes on; opened, it goes on with the same text if it is given the same seed. Names are the
        tenant's: 1 to 128 of the characters ``A-Z a-z 0-9 . _ : / -``. Raises InvalidRequest for another name, and for one in
        use unless ``overwrite``; LimitExceeded past the tenant's bytes.
        """
        request = SaveContext(0, snapshot_name(name), checked_flag("overwrite", overwrite))
        return await self._handle.save(request)

    @classmethod
    async def open(cls, name: str, model: str | Model | None = None) -> Context:
        """Return a new context that starts as the saved one: its conversation, its KV, and with a seed its next tokens.

        ``model``: the model to open it on, which has to have the weights that it was saved with; None: whichever has, of
        several the one of the same name. Raises NotFound, SnapshotDamaged, and SnapshotForeign for a model with other weights,
        or when none with these is served.
        """
        return cls._of(await ContextHandle.opened(OpenSaved(snapshot_name(name), model_name(model))))

    @classmethod
    async def take(cls, name: str, model: str | Model | None = None) -> Context:
        """As :meth:`open`, and delete what was saved. Of several that take one name, exactly one gets it."""
        return cls._of(await ContextHandle.opened(TakeSaved(snapshot_name(name), model_name(model))))

    @staticmethod
    async def delete(name: str) -> None:
        """Delete what was saved under ``name``, damaged or not. Raises NotFound."""
        request = DeleteSaved(snapshot_name(name))
        await current_transport().call(request)

    @staticmethod
    async def saved() -> list[SavedContext]:
        """Return the tenant's saved contexts, by name."""
        return list((await current_transport().call(ListSaved())).saved)

    async def export(self) -> bytes:
        """Return the context as bytes, KV included. Raises LimitExceeded above 8 MiB."""
        data: bytes = (await self._handle.ask(ExportContext(0))).data
        return data

    @classmethod
    async def from_bytes(cls, data: bytes, model: str | Model | None = None) -> Context:
        """Return a new context out of the bytes of :meth:`export`. Their form is checked, but not whether their
        KV was computed by the model: pass only bytes that you trust. ``model``: as in :meth:`open`.
        """
        if not isinstance(data, bytes):
            raise InvalidRequest(f"data must be bytes, not {type(data).__name__}")
        request = ImportContext(data, model_name(model))
        check_import(request)
        return cls._of(await ContextHandle.opened(request))

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
        attention_mask: Sequence[Sequence[bool]] | AttentionMask | None = None,
        positions: Sequence[int] | None = None,
        adapter: str | Adapter | None = None,
    ) -> ForwardResult:
        """Append ``tokens``, compute everything pending, and look at the rows ``at``.

        ``at`` are indices into ``tokens``; empty means the last one. Without ``tokens`` that is the last token that the context
        holds: ``forward([])`` tells what comes next, and appends nothing. Each :class:`~inferd.protocol.RowResult` holds
        the token that ``sampler`` (argmax by default) draws after that row, the entropy of the distribution in
        nats, the ``top`` most likely tokens with their log-probabilities, and a result per probe, in the order of
        ``probes`` (:class:`~inferd.Logits`, :class:`~inferd.Distribution`, :class:`~inferd.Logprob`,
        :class:`~inferd.Logprobs`, :class:`~inferd.Entropy`). The drawn tokens are not appended.

        ``mask``: the token ids that are allowed, such as ``await matcher.mask()`` of a :class:`~inferd.Matcher`; ``bias``:
        numbers added to the logits of some tokens. Everything in a row speaks of the logits after bias and mask.

        ``attention_mask``: one row of bools per token, over all tokens of the context (:attr:`length` of them once it is
        flushed) and ``tokens`` behind them: which of them it attends to. A token must see itself and may see nothing behind
        itself. Or an :class:`~inferd.AttentionMask`, which says the same in spans. None: all before. ``positions``: where each
        token stands for the model's position encoding; None: behind the token before. A sliding window counts positions. What is
        appended later sees everything before it and stands behind the last position given here. ``adapter``: as in
        :meth:`generate`.

        ``ForwardResult.length`` is the context's new length. Raises InvalidRequest, which names the argument, for what is out of
        range, and LimitExceeded for more probed numbers than one reply carries.
        """
        ids, rows = checked_tokens("tokens", tokens), checked_tokens("at", at)
        allowed, allowed_bits = wire_mask(mask)
        bias_tokens, bias_values = checked_bias(bias)
        asked = Forward(
            0,
            ids,
            rows,
            checked_sampler(Sampler.argmax() if sampler is None else sampler).sampling,
            top,
            wire_probes(probes),
            allowed,
            bias_tokens,
            bias_values,
            [] if isinstance(attention_mask, AttentionMask) else attention_runs(attention_mask, len(ids)),
            checked_positions(positions, len(ids)),
            adapter_name(adapter),
            allowed_bits,
        )
        check_forward(asked)
        context = await self._handle.prepare()
        if isinstance(attention_mask, AttentionMask):
            asked = replace(asked, attention_mask=attention_mask.to_wire(self._handle.length, len(ids)))
        reply: ForwardResult = await self._handle.call(replace(asked, context=context), keeps_turn=not ids)
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
        asked = PromptLogprobs(0, ids, top, adapter_name(adapter))
        check_prompt_logprobs(asked)
        reply: TokenLogprobs = await self._handle.extend(asked)
        return reply.tokens

    async def verify(
        self,
        tokens: Sequence[int] = (),
        parents: Sequence[int] | None = None,
        sampler: Sampler | None = None,
        *,
        adapter: str | Adapter | None = None,
        generated: int = 0,
    ) -> Verification:
        """Verify a draft in one step, and append what stands of it and then the model's own token.

        The step of a decoding loop of your own: ``tokens`` are a guess at what comes next, at most 64, possibly none;
        ``parents`` makes a tree of them, as in :class:`~inferd.DraftTree`. Each row is drawn by ``sampler`` (argmax by
        default), and a token is accepted while it is the one that was drawn. So the tokens are those that
        :meth:`generate` would bring with this sampler: give it a seed, the same for each call, or each call draws anew.
        End-of-text is never accepted from a draft: it comes as ``token``, and then the text is over. A turn that a user
        message left open is cued first. ``adapter``: as in :meth:`generate`. ``generated``: how many of the context's last
        tokens are output to the sampler's penalties, for which all else is prompt.

        Returns a :class:`~inferd.Verification`: ``accepted`` tokens, ``token``, the model's own behind them, ``path``, the
        accepted tokens' indices in the draft, ``length``, the context's new length, and ``drafted``, how many of the draft's
        tokens were verified: beside other programs there may be no room for all of them, which changes no text. Raises
        InvalidRequest, which names the argument, for an invalid draft.
        """
        ids, above = checked_draft(tokens, parents)
        asked = VerifyDraft(
            0,
            ids,
            above,
            checked_sampler(Sampler.argmax() if sampler is None else sampler).sampling,
            adapter_name(adapter),
            generated,
        )
        check_verify(asked)
        reply: Verification = await self._handle.extend(asked, cue=True)
        return reply

    def generate(
        self,
        sampler: Sampler | CustomSampler | ChooseToken,
        *,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
        constrain: JsonSchema[T] | OutputConstraint | StepConstraint | None = None,
        speculator: Speculator | None = None,
        system_speculation: SystemSpeculation = False,
        predict: Prediction | None = None,
        on_cycle: CycleCallback | None = None,
        heal: bool = False,
        logprobs: int | None = None,
        on_length: OnLength | None = None,
        adapter: str | Adapter | None = None,
        priority: int = 0,
        ignore_eos: bool = False,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        reasoning: ReasoningSpec | None = None,
        shown: Sequence[str] = (),
        include_stop: bool = False,
        probes: Sequence[RowProbe] = (),
        logprob_tokens: Sequence[int] = (),
    ) -> Generator[T]:
        """Generate after the context's last token; what is delivered becomes part of the context.

        Returns at once; the generation starts when the first step is asked for. If the last thing added is a system or user
        message, the assistant's turn is cued first.

        ``sampler``: how each token is drawn. Or a function of your own (it may be ``async``) that gets the
        :class:`~inferd.Candidates` for each token and returns one of them, see :class:`~inferd.CustomSampler`: a round trip
        per token, no speculation.

        ``max_tokens``: at most this many, at least 1. ``stop``: end before the first of these texts, which is no part of the
        output unless ``include_stop``. ``stop_token_ids``: tokens that end the text as end-of-text does; with ``ignore_eos``
        only they do. ``min_tokens``: nothing but a complete constraint ends the text before it has so many tokens. ``shown``:
        names of special tokens that show in the text; others do not.

        ``constrain``: the output matches a :class:`~inferd.JsonSchema`, :class:`~inferd.Regex`, :class:`~inferd.AnyJson`,
        :class:`~inferd.Choice`, :class:`~inferd.Lark`, :class:`~inferd.Gbnf`, :class:`~inferd.Tagged` or
        :class:`~inferd.AllOf`. Or it is masked by an object of your own with a method ``step(accepted)``, without
        speculation. ``reasoning``: the model may think first, between these marks, and ``constrain`` holds what comes behind;
        the text has both.

        ``adapter``: compute with this LoRA adapter. Earlier tokens of the context that were computed without it, or with
        another, are computed again. ``priority``, from -3 to 3: each step up doubles its share of what your tenant gets.

        ``system_speculation``: the runtime drafts tokens: True with every source that it has for the request, ``"auto"`` as
        the operator chose, or as a :class:`~inferd.SpecConfig` says. ``predict``: what the output will probably be, text or
        token ids, drafted wherever the output agrees with it, with or without ``system_speculation``. ``speculator``: the
        program drafts in place of the runtime, see :class:`~inferd.Speculator`. None of them changes which text comes, only
        how fast (but see ``SpecConfig.verifier``). ``on_cycle`` gets a :class:`~inferd.SpeculationCycle` for each step, before
        the step is handed out.

        ``heal``: where the context ends inside what the model knows as one token (in ``http:``, when it knows ``://``), its
        last tokens are taken away and written again. The text begins behind the context as it was; the tokens that write its
        end anew come with the first steps and count towards ``max_tokens``. Not with ``mode="best_effort"`` or a constraint
        of your own.

        ``logprobs``: each step's ``logprobs`` hold one :class:`~inferd.TokenLogprob` per token, with so many (0 to 20) of the
        most likely tokens at its place, or with ``logprob_tokens`` (at most 64). They are the model's own, before penalties,
        bias, constraint and temperature. ``probes``, as in :meth:`forward`: each step's ``probes`` hold one list of results
        per token, of the row that it was drawn from, behind penalties, bias and constraint, and before the temperature.

        ``on_length`` says what happens when ``max_tokens`` (or the context) is used up. "complete": the text is steered in
        time to the nearest end that ``constrain`` allows; refused at the start where the shortest text needs more tokens than
        there are (:class:`~inferd.Truncated`), or no end is found (ConstraintError). "try_complete": the same, but cut where
        no end is found; "complete_or_cut": cut in both cases. "error": Truncated is raised behind the last step. "cut": the
        text just ends, with ``finish`` "length". None is "try_complete" for ``collect_json`` and ``stream_json``, else "cut".

        Raises InvalidRequest, which names an argument that is out of range, and ValueError for both kinds of speculation.
        """
        if speculator is not None and (system_speculation or predict):
            other = "predict=" if predict else "system_speculation=True"
            raise ValueError(f"speculator= and {other} exclude each other: pass one of them")
        self._handle.check()
        drawn = checked_chooser(sampler)
        arguments = GenerateArguments(
            sampling=drawn.sampling,
            chooser=drawn if isinstance(drawn, CustomSampler) else None,
            probes=tuple(wire_probes(probes)),
            max_tokens=max_tokens,
            stop=checked_texts("stop", stop),
            constrain=checked_constraint(constrain),
            speculator=checked_speculator(speculator),
            drafts=RuntimeDrafts.checked(system_speculation, predict),
            adapter=adapter_name(adapter),
            priority=priority,
            on_cycle=checked_cycle(on_cycle),
            heal=checked_flag("heal", heal),
            logprobs=logprobs,
            on_length=checked_on_length(on_length),
            ignore_eos=checked_flag("ignore_eos", ignore_eos),
            min_tokens=min_tokens,
            stop_token_ids=tuple(checked_tokens("stop_token_ids", stop_token_ids)),
            reasoning=checked_reasoning(reasoning),
            shown=checked_texts("shown", shown),
            include_stop=checked_flag("include_stop", include_stop),
            logprob_tokens=tuple(checked_tokens("logprob_tokens", logprob_tokens)),
        )
        check_start_generate(arguments.request(0))
        return Generator(self._handle, arguments)

    def run_tools(self, tools: Sequence[ToolLike], **options: Unpack[ToolOptions]) -> ToolRun:
        """Let the model call ``tools`` until it has an answer: ``await ctx.run_tools([weather]).collect()``.

        Options: :class:`~inferd.tools.ToolOptions`. What it does, and leaves in the context: :class:`~inferd.tools.ToolRun`.
        """
        from inferd.tools.run import ToolRun  # not at the top: it uses contexts

        return ToolRun(self, self._handle, tools, options)

    async def __aenter__(self) -> Context:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except InferdError:
            if error is None:
                raise

    @classmethod
    def _of(cls, handle: ContextHandle) -> Context:
        context = cls.__new__(cls)
        context._handle = handle
        return context

    def _add(self, part: Part) -> Context:
        self._handle.add(part)
        return self
