"""``Forward``: one pass of the model, described step by step and then executed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from inferlet.adapter import Adapter, adapter_name
from inferlet.output import Output, ProbeHandle, RawOutput, SampleHandle
from inferlet.passes import PassInput, Wanted, run_pass
from inferlet.refused import refuse
from inferlet.run_lengths import number_of
from inferlet.sample import RowProbe, Sampler, probe_kind

if TYPE_CHECKING:
    from inferlet.context import Context

EMPTY = (
    "Forward.execute() called with no inputs and no slots: give it tokens with input(), or ask for something with sample() "
    "or probe()"
)


class Forward:
    """A pass. Made by :meth:`Context.forward`. Indices count the tokens of :meth:`input`, then those of :meth:`input_at`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._tokens: list[int] = []
        self._placed: list[tuple[int, int]] = []
        self._slots: list[Wanted] = []
        self._mask: int | None = None
        self._attention: list[list[int]] | None = None
        self._adapter = ""
        self._keeps = True

    def start_position(self) -> int:
        """Return the position of the first token of :meth:`input`: the context's ``seq_len``."""
        return self._ctx.seq_len

    def page_size(self) -> int:
        """Return the tokens per page."""
        return self._ctx.page_size

    def defer_commit(self) -> Forward:
        """Leave the context as it is: what the pass computes is gone behind it. (Pie has it in Rust.)"""
        self._keeps = False
        return self

    def input(self, tokens: Iterable[int]) -> Forward:
        """Add tokens behind the context. It holds them when the pass was executed."""
        self._tokens.extend(tokens)
        return self

    def input_at(self, tokens: Sequence[int], positions: Sequence[int]) -> Forward:
        """Add tokens at positions, for this pass alone: the context does not hold them behind it.

        Raises ValueError unless there is one position for each.
        """
        if len(tokens) != len(positions):
            raise ValueError("tokens and positions must be the same length")
        self._placed.extend(zip(tokens, positions, strict=True))
        return self

    def input_image(self, image: Any, anchor: int) -> NoReturn:
        """Refuse: there are no pictures."""
        refuse("Forward.input_image", "the runtime serves models of text")

    def input_audio(self, audio: Any, anchor: int) -> NoReturn:
        """Refuse: there is no sound."""
        refuse("Forward.input_audio", "the runtime serves models of text")

    def sample(self, indices: Iterable[int], sampler: Sampler) -> SampleHandle:
        """Draw a token from the row of each index; read them with ``Output.token`` or ``tokens_at``."""
        rows = list(indices)
        handle = SampleHandle(len(self._slots), len(rows))
        self._slots.extend(Wanted(index, sampler) for index in rows)
        return handle

    def probe(self, index: int, probe: RowProbe) -> ProbeHandle:
        """Look at the row of an index."""
        handle = ProbeHandle(len(self._slots), probe_kind(probe))
        self._slots.append(Wanted(index, probe))
        return handle

    def mask(self, brle: Sequence[int]) -> Forward:
        """Allow only these tokens in all rows: run lengths over the vocabulary, the first of which forbids."""
        self._mask = number_of(brle) if len(brle) else None
        return self

    def attention_mask(self, masks: Sequence[Sequence[int]]) -> Forward:
        """Say what each token attends to: run lengths from the context's start, the first of which hides.

        A mask is cut where its token stands: it sees itself, and nothing behind itself.
        """
        self._attention = [list(runs) for runs in masks]
        return self

    def adapter(self, adapter: Adapter) -> Forward:
        """Compute with an adapter."""
        self._adapter = adapter_name(adapter)
        return self

    def zo_seed(self, seed: int) -> NoReturn:
        """Refuse: adapters are not trained here."""
        refuse("Forward.zo_seed", "adapters are not trained here")

    async def execute(self) -> Output:
        """Run the pass. Raises ValueError for one with neither tokens nor anything that is asked for."""
        if not self._tokens and not self._placed and not self._slots:
            raise ValueError(EMPTY)
        held = self._ctx.held
        before = held.length
        slots = await run_pass(held, self._input(before), self._slots)
        await held.shorten(before + len(self._tokens) if self._keeps else before)
        return Output(RawOutput(slots))

    def _input(self, before: int) -> PassInput:
        tokens = [*self._tokens, *(token for token, _ in self._placed)]
        positions: list[int] = []
        if self._placed:
            own = range(before, before + len(self._tokens))
            positions = [*own, *(position for _, position in self._placed)]
        return PassInput(tokens, positions, self._attention, self._mask, self._adapter)
