"""One pass of the model with any samplers and probes, as passes of inferd: one sampler, and the same probes for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.attention import AttentionMask
from inferd.protocol import Forward, ForwardResult, InvalidRequest, Probe, Sampling, check_forward
from inferlet.output import ProbeSlot, Slot, TokenSlot
from inferlet.run_lengths import token_mask
from inferlet.sample import Distribution, Logits, RowProbe, Sampler
from inferlet.sequence import HeldSequence

MOST_PROBES = 32
FEW = 64
"""So many numbers of a row are told for other rows, too, rather than in a pass of their own."""


@dataclass(frozen=True)
class Wanted:
    """A slot: what is wanted of the row of token ``index``."""

    index: int
    what: Sampler | RowProbe


@dataclass(frozen=True)
class PassInput:
    """What a pass computes. ``positions`` and ``attention``: none, or one for each token; ``mask``: the tokens that are allowed.

    ``adapter``: "" for none.
    """

    tokens: Sequence[int]
    positions: Sequence[int] = ()
    attention: Sequence[Sequence[int]] | None = None
    mask: int | None = None
    adapter: str = ""

    @property
    def plain(self) -> bool:
        """True if the tokens are just appended."""
        return not self.positions and self.attention is None


@dataclass
class PlannedPass:
    """A pass of inferd, and which slots it fills: by row, the slot of the drawn token, and of each probe."""

    sampler: Sampler | None = None
    probes: list[Probe] = field(default_factory=list)
    drawn: dict[int, int] = field(default_factory=dict)
    found: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        """The rows that it looks at, ascending."""
        return sorted(self.drawn.keys() | self.found.keys())

    def takes(self, wanted: Wanted) -> bool:
        """Return True if it has room for a slot."""
        if isinstance(wanted.what, Sampler):
            return self.sampler in (None, wanted.what) and wanted.index not in self.drawn and self._is_cheap(wanted)
        probe = wanted.what.to_wire()
        room = probe in self.probes or len(self.probes) < MOST_PROBES
        return room and (set(self.rows) <= {wanted.index} or _is_small(wanted.what)) and self._is_cheap(wanted)

    def add(self, slot: int, wanted: Wanted) -> None:
        """Add a slot."""
        if isinstance(wanted.what, Sampler):
            self.sampler = wanted.what
            self.drawn[wanted.index] = slot
            return
        probe = wanted.what.to_wire()
        if probe not in self.probes:
            self.probes.append(probe)
        self.found.setdefault(wanted.index, []).append((slot, self.probes.index(probe), probe.kind))

    def _is_cheap(self, wanted: Wanted) -> bool:
        """Return True if no probe tells a whole vocabulary for the slot's row in vain."""
        large = any(
            probe.kind == "logits" or (probe.kind == "distribution" and not 0 < probe.k <= FEW) for probe in self.probes
        )
        return not large or wanted.index in self.rows


def _is_small(probe: RowProbe) -> bool:
    return not isinstance(probe, Logits) and not (isinstance(probe, Distribution) and not 0 < probe.k <= FEW)


def planned(slots: Sequence[Wanted]) -> list[PlannedPass]:
    """Return the passes that fill all slots: one, unless they want several samplers, or much of several rows."""
    passes: list[PlannedPass] = []
    for slot, wanted in enumerate(slots):
        place = next((each for each in passes if each.takes(wanted)), None)
        if place is None:
            place = PlannedPass()
            passes.append(place)
        place.add(slot, wanted)
    return passes


async def run_pass(held: HeldSequence, given: PassInput, slots: Sequence[Wanted]) -> list[Slot]:
    """Compute tokens behind a sequence, which holds them then, and return what fills the slots."""
    if not slots and given.plain:
        await held.append(given.tokens)
        await held.compute(given.adapter)
        return []
    filled: dict[int, Slot] = {}
    first = min((wanted.index for wanted in slots), default=0) if given.plain and given.tokens else 0
    await held.append(given.tokens[:first])
    start = held.length
    for each in planned(slots) or [PlannedPass()]:
        await held.shorten(start)
        filled.update(await _run(held, given, each, first))
    return [filled[slot] for slot in range(len(slots))]


async def _run(held: HeldSequence, given: PassInput, wanted: PlannedPass, first: int) -> dict[int, Slot]:
    request = _request(held, given, wanted, first)
    check_forward(request)
    result: ForwardResult = await held.ask(request)
    held.length = result.length
    filled: dict[int, Slot] = {}
    rows = dict(zip(wanted.rows if given.tokens else wanted.rows[:1], result.rows, strict=False))
    for index in wanted.rows:
        row = rows[index] if index in rows else result.rows[0]
        if index in wanted.drawn:
            filled[wanted.drawn[index]] = TokenSlot(row.token)
        for slot, number, kind in wanted.found.get(index, []):
            filled[slot] = ProbeSlot(kind, row.probes[number])
    return filled


def _request(held: HeldSequence, given: PassInput, wanted: PlannedPass, first: int) -> Forward:
    tokens = list(given.tokens[first:])
    at = [index - first for index in wanted.rows] if tokens else []
    if min(at, default=0) < 0:
        raise InvalidRequest(f"there is no row {min(wanted.rows)}")
    allowed, bits = (None, "") if given.mask is None else token_mask(given.mask).to_wire()
    attention = [] if given.attention is None else AttentionMask.runs(given.attention).to_wire(held.length, len(tokens))
    return Forward(
        held.number,
        tokens,
        at,
        Sampling() if wanted.sampler is None else wanted.sampler.sampling,
        probes=list(wanted.probes),
        mask=allowed,
        attention_mask=attention,
        positions=list(given.positions),
        adapter=given.adapter,
        mask_bits=bits,
    )
