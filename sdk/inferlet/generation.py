"""``Generator``: tokens, step by step; each ``GenStep`` is one pass, which the program may change before it executes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from inferd.protocol import ConstraintError, InvalidRequest, StartGenerate
from inferlet import chat
from inferlet.adapter import Adapter, adapter_name
from inferlet.grammar import AnyJson, Constraint, JsonSchema, Schema, built
from inferlet.output import Output, ProbeHandle, RawOutput, SampleHandle, Slot, TokenSlot
from inferlet.passes import PassInput, Wanted, run_pass
from inferlet.refused import refuse
from inferlet.run_lengths import intersection
from inferlet.sample import RowProbe, Sampler, probe_kind
from inferlet.spec import Speculator
from inferlet.whole import UNBOUNDED, joined, rest_of

if TYPE_CHECKING:
    from inferlet.context import Context

Constraints: TypeAlias = Schema | Constraint | list[Schema | Constraint]


class Generator:
    """Made by :meth:`Context.generate`. Its methods return it, so that they can be chained; use it once.

    Iterating it yields a :class:`GenStep` for each pass, which is to be executed before the next one. Or await one of
    :meth:`collect_tokens`, :meth:`collect_text` and :meth:`collect_json`.
    """

    def __init__(
        self,
        ctx: Context,
        sampler: Sampler,
        *,
        max_tokens: int | None = None,
        stop: Iterable[int] | None = None,
        constrain: Constraints | None = None,
        logit_mask: list[int] | None = None,
        speculator: Speculator | None = None,
        system_speculation: bool = False,
        adapter: Adapter | None = None,
    ) -> None:
        self.ctx = ctx
        self.sampler = sampler
        self.speculator = speculator
        self.adapter_name = adapter_name(adapter)
        self.step_probes: list[Wanted] = []
        self.static_mask = list(logit_mask or [])
        self._system_speculation = system_speculation
        self._most = max_tokens
        self._stop = list(stop or [])
        self._constraints: list[Constraint] = []
        self._added: list[int] = []
        self._count = 0
        self._done = False
        self._open_step: GenStep | None = None
        for each in constrain if isinstance(constrain, list) else [] if constrain is None else [constrain]:
            self.constrain(each)

    # -- Settings -------------------------------------------------------------------------------------------------

    def max_tokens(self, n: int) -> Generator:
        """End after so many tokens."""
        self._most = n
        return self

    def stop(self, tokens: Iterable[int]) -> Generator:
        """End before any of these tokens."""
        self._stop = list(tokens)
        return self

    def add_stop(self, tokens: Iterable[int]) -> Generator:
        """End before any of these tokens, too."""
        self._stop.extend(tokens)
        return self

    def disable_system_speculation(self) -> Generator:
        """Do without the runtime's drafts."""
        self._system_speculation = False
        return self

    def constrain(self, c: Schema | Constraint) -> Generator:
        """Add a constraint: all of them hold together. Raises TypeError for what is none."""
        if isinstance(c, Schema):
            self._constraints.append(built(c, self.ctx.model))
        elif isinstance(c, Constraint):
            self._constraints.append(c)
        else:
            raise TypeError(
                f"a constraint has a method build_constraint(model) or step(accepted), and {c!r} has neither"
            )
        return self

    def horizon(self, n: int) -> Generator:
        """Change nothing: nothing is bought here."""
        return self

    def rebid_each_step(self, enabled: bool) -> Generator:
        """Change nothing: nothing is bought here."""
        return self

    def adapter(self, a: Adapter) -> Generator:
        """Compute with an adapter."""
        self.adapter_name = adapter_name(a)
        return self

    def zo_seed(self, seed: int) -> NoReturn:
        """Refuse: adapters are not trained here."""
        refuse("Generator.zo_seed", "adapters are not trained here")

    def probe_each_step(self, index: int, probe: RowProbe) -> ProbeHandle:
        """Look at a row of every pass. The handle reads the output of each."""
        self.step_probes.append(Wanted(index, probe))
        return ProbeHandle(len(self.step_probes), probe_kind(probe))

    # -- Steps ----------------------------------------------------------------------------------------------------

    @property
    def tokens_generated(self) -> int:
        """Number of tokens so far."""
        return self._count

    @property
    def is_done(self) -> bool:
        """True after a stop token, at ``max_tokens``, and once the context is full."""
        return self._done or (self._most is not None and self._count >= self._most)

    @property
    def room(self) -> int | None:
        """How many tokens may still come; None for no limit. (Not in Pie.)"""
        return None if self._most is None else self._most - self._count

    def __aiter__(self) -> Generator:
        return self

    async def __anext__(self) -> GenStep:
        if self._open_step is not None and not self._open_step.executed:
            raise InvalidRequest("execute() the step before you ask for the next one")
        if self.is_done or self._is_full():
            self._done = True
            raise StopAsyncIteration
        added, self._added = self._added, []
        masks = [each.step(added) for each in self._constraints]
        self._open_step = GenStep(self, intersection([self.static_mask, *masks]), drafts=self._drafts())
        return self._open_step

    def _is_full(self) -> bool:
        held = self.ctx.seq_len + len(self.ctx.buffer())
        return bool(self._count) and held >= self.ctx.model.info.max_context

    def _drafts(self) -> list[int]:
        """Return the speculator's draft. A constraint says nothing about the rows behind one: there, nothing is drafted."""
        if self.speculator is None or self._constraints:
            return []
        tokens, _ = self.speculator.draft()
        held = self.ctx.seq_len + len(self.ctx.buffer())
        return list(tokens)[: max(self.ctx.model.info.max_context - held - 1, 0)]

    def accept(self, tokens: Sequence[int]) -> list[int]:
        """Take tokens that the program chose itself, and return those that count: up to a stop token or ``max_tokens``."""
        accepted = self.counted(list(tokens))
        self.ctx.append(accepted)
        if accepted and self.speculator is not None:
            self.speculator.accept(accepted)
        return accepted

    def counted(self, tokens: list[int]) -> list[int]:
        """Return the tokens that count, and take note of them. (Not in Pie.)"""
        end = next((at for at, token in enumerate(tokens) if token in self._stop), len(tokens))
        self._done = self._done or end < len(tokens)
        if self.room is not None and end > self.room:
            end, self._done = max(self.room, 0), True
        self._added += tokens[:end]
        self._count += end
        return tokens[:end]

    # -- To the end -----------------------------------------------------------------------------------------------

    async def collect_tokens(self) -> list[int]:
        """Return all tokens, to the end."""
        return await self._collect("cut")

    async def collect_text(self) -> str:
        """Return all text, to the end, as the chat decoder shows it."""
        return self._shown(await self._collect("cut"))

    async def collect_json(self, *, schema: str | None = None, parse: Callable[[str], Any] | None = None) -> Any:
        """Return all text, held to a JSON Schema (any JSON without one), as what ``parse`` makes of it, or as plain values."""
        self.constrain(AnyJson() if schema is None else JsonSchema(schema))
        text = self._shown(await self._collect("try_complete"))
        return json.loads(text) if parse is None else parse(text)

    def _shown(self, tokens: list[int]) -> str:
        decoder = chat.Decoder(self.ctx.model)
        event = decoder.feed(tokens)
        if isinstance(event, chat.Event.Done):
            return event.text
        return (event.text if isinstance(event, chat.Event.Delta) else "") + decoder.finish()

    async def _collect(self, on_length: str) -> list[int]:
        """Return all tokens: by the runtime alone, where nothing of the program takes part in the steps."""
        generation = await self._started(on_length) if self._is_plain and not self.is_done else None
        if generation is not None:
            return await self._whole(generation)
        return [token async for step in self for token in (await step.execute()).tokens]

    @property
    def _is_plain(self) -> bool:
        own = self.speculator is not None or self.step_probes or self.static_mask or self._open_step is not None
        return not own and set(self._stop) == set(self.ctx.model.info.eos_tokens)

    async def _started(self, on_length: str) -> int | None:
        """Have the runtime generate; None where it cannot hold the text to the constraints, which then are asked step by step."""
        try:
            constraint = joined(self._constraints)
        except ValueError:
            return None
        held, waiting = self.ctx.held, self.ctx.take_buffer()
        await held.append(waiting)
        request = StartGenerate(
            held.number,
            self.sampler.sampling,
            UNBOUNDED if self._most is None else self._most,
            constraint=constraint,
            system_speculation=self._system_speculation,
            adapter=self.adapter_name,
            on_length="cut" if constraint is None else on_length,
        )
        try:
            number: int = (await held.ask(request)).generation
        except (ConstraintError, InvalidRequest):
            return None
        return number

    async def _whole(self, generation: int) -> list[int]:
        held = self.ctx.held
        tokens, stopped = await rest_of(held, generation)
        self._count, self._done = len(tokens), True
        if tokens and not stopped:
            await held.shorten(held.length - 1)
            self.ctx.append(tokens[-1:])
        return tokens


class GenStep:
    """The next pass of a generator: what the context has buffered, the sampler, the mask of the constraints, and a draft."""

    def __init__(self, generator: Generator, mask: int | None, drafts: list[int]) -> None:
        self.executed = False
        self._generator = generator
        self._mask = mask
        self._drafts = drafts
        self._sampled = True
        self._probes: list[Wanted] = []

    def clear_sampler(self) -> GenStep:
        """Draw no token: the program chooses one, and gives it to :meth:`Generator.accept`."""
        self._sampled = False
        return self

    def probe(self, index: int, probe: RowProbe) -> ProbeHandle:
        """Look at a row of this pass; the index counts the tokens that it computes."""
        slot = int(self._sampled) + len(self._generator.step_probes) + len(self._probes)
        self._probes.append(Wanted(index, probe))
        return ProbeHandle(slot, probe_kind(probe))

    async def execute(self) -> Output:
        """Run the pass, and count its tokens. Raises InvalidRequest for a step that was executed."""
        if self.executed:
            raise InvalidRequest("this step was executed; ask the generator for the next one")
        self.executed = True
        generator, held = self._generator, self._generator.ctx.held
        tokens = generator.ctx.take_buffer()
        drafts = self._drafts if self._sampled else []
        probes = [*generator.step_probes, *self._probes]
        if not tokens and not drafts and not self._sampled and not probes:
            generator._done = True
            return Output(RawOutput())
        rows = self._sampled_rows(len(tokens), len(drafts))
        asked = [*(Wanted(row, generator.sampler) for row in rows), *probes]
        given = PassInput([*tokens, *drafts], mask=self._mask, adapter=generator.adapter_name)
        before = held.length
        slots = await run_pass(held, given, asked)
        drawn, rest = slots[: len(rows)], slots[len(rows) :]
        kept = await self._keep(drawn, before + len(tokens))
        if not self._sampled:
            return Output(RawOutput(rest))
        return Output(RawOutput([*drawn[:1], *rest]), kept, SampleHandle(0))

    def _sampled_rows(self, tokens: int, drafts: int) -> list[int]:
        last = max(tokens - 1, 0)
        return list(range(last, last + drafts + 1)) if self._sampled else []

    async def _keep(self, drawn: Sequence[Slot], start: int) -> list[int]:
        """Take what stands of the draft and the token behind it; the context holds all but the last, which is buffered."""
        if not self._sampled:
            return []
        generator = self._generator
        sampled = [slot.value for slot in drawn if isinstance(slot, TokenSlot)]
        agreed = next((at for at, token in enumerate(self._drafts) if sampled[at] != token), len(self._drafts))
        accepted = sampled[: agreed + 1]
        if generator.speculator is not None:
            generator.speculator.accept(list(accepted))
            if rejected := len(self._drafts) - agreed:
                generator.speculator.rollback(rejected)
        kept = generator.counted(accepted)
        stopped = len(kept) < len(accepted) and accepted[len(kept)] in generator._stop
        held = len(kept) if stopped else max(len(kept) - 1, 0)
        await generator.ctx.held.shorten(start + held)
        if kept and not stopped:
            generator.ctx.append(kept[-1:])
        return kept
