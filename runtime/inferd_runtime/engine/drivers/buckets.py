"""Which shapes a captured step may have. A CUDA graph has fixed shapes: a step runs in the smallest one that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferd_runtime.kernels.rows import FEW_ROWS, SPLIT_KEYS, prompt_tile_rows

WIDTHS = (1, 2, 4, 8, 16)
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
MOST_TOTAL = 1024
"""Rows of a captured step without prompts."""
MIXED_ROWS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
"""Rows of captured steps with prompts. Beyond, arithmetic takes so long that launches hide behind it."""
CHEAP_ROWS = 512
"""Up to so many rows a step is bound by its weights' bytes and by its launches, so that padding costs little."""
MOST_LINES = 4096
"""Sums of splits that a step keeps for each head: 68 MB for 32 heads of width 128. See :class:`KeySplits`."""
MOST_SPLIT_ROWS = 1024
"""Rows of a step whose keys are cut into several splits."""
FEW_ROOM = 1024
PROMPT_ROOM = 128
"""Entries of tiles that the splits of long sequences take beside one for each tile."""


@dataclass(frozen=True, slots=True, order=True)
class StepBucket:
    """The fixed sizes of a step: ``rows`` of ``batch`` sequences, of which ``logits`` rows are sampled or read; drafts of up to
    ``nodes`` nodes.

    Sequences of up to FEW_ROWS rows are in ``tiles`` of ``tile_rows`` rows, others in ``prompt_tiles`` of ``prompt_rows``.
    ``split_rows`` rows may have several splits, of ``split_keys`` keys, whose sums are in ``split_lines``; ``tile_room`` and
    ``prompt_room``: entries for splits beside each tile's first.
    """

    rows: int
    batch: int
    logits: int
    nodes: int = 0
    tiles: int = 0
    tile_rows: int = 1
    prompt_tiles: int = 0
    prompt_rows: int = 1
    tile_room: int = 0
    prompt_room: int = 0
    split_rows: int = 0
    split_lines: int = 0
    split_keys: int = SPLIT_KEYS


@dataclass(frozen=True, slots=True)
class StepShapes:
    """The shapes of a driver's steps, of at most ``most_rows`` rows, for ``group`` query heads per key head.

    ``longest``: keys of a sequence, at most. ``split_keys``: see :class:`KeySplits`.
    """

    most_rows: int
    longest: int
    group: int = 1
    split_keys: int = SPLIT_KEYS

    def of(self, counts: Sequence[int], logits: int, nodes: int = 0) -> StepBucket | None:
        """Return the captured shape for sequences with so many rows each, ``logits`` of which are sampled or read, and drafts of
        up to ``nodes`` nodes; None where there is none.
        """
        if nodes >= FEW_ROWS:
            return None
        mixed = max(counts) > FEW_ROWS
        found = self._mixed_of(counts, nodes) if mixed else self._decode_of(counts)
        return found if found is not None and found.rows <= self.most_rows and logits <= found.logits else None

    def recorded(self) -> list[StepBucket]:
        """Return every shape that :meth:`of` may name; the largest first, so that memory fits all."""
        most = min(self.most_rows, MOST_TOTAL)
        pairs = [(batch, width) for batch in BATCHES for width in WIDTHS if batch * width <= most]
        shapes = {self.decode(batch, width) for batch, width in pairs}
        shapes |= {
            self.mixed(rows, drafted) for rows in MIXED_ROWS if rows <= self.most_rows for drafted in (False, True)
        }
        return sorted(shapes, reverse=True)

    def decode(self, batch: int, width: int) -> StepBucket:
        """Return the shape without prompts of ``width`` rows for each of ``batch`` sequences on average."""
        drafts = {} if width == 1 else {"nodes": FEW_ROWS - 1, "tile_rows": FEW_ROWS}
        return self._with_splits(StepBucket(batch * width, batch, batch * width, tiles=batch, **drafts))

    def mixed(self, rows: int, drafted: bool) -> StepBucket:
        """Return the shape of so many rows of prompts and others. Rows of prompts are hardly ever read but the last."""
        drafts = {"nodes": FEW_ROWS - 1, "tile_rows": FEW_ROWS} if drafted else {}
        batch, prompt_rows, shortest = min(rows, BATCHES[-1]), prompt_tile_rows(self.group), FEW_ROWS + 1
        # The most tiles for the rows are those of many prompts of the fewest rows.
        prompts = -(-rows * -(-shortest // prompt_rows) // shortest)
        tiles = {"tiles": batch, "prompt_tiles": prompts, "prompt_rows": prompt_rows}
        return self._with_splits(StepBucket(rows, batch, batch, **tiles, **drafts))

    def exact(self, counts: Sequence[int], lengths: Sequence[int], logits: int, nodes: int) -> StepBucket:
        """Return the shape of a step that is not captured: as large as it is. ``lengths``: each sequence's keys."""
        few = [count for count in counts if count <= FEW_ROWS]
        many = [count for count in counts if count > FEW_ROWS]
        prompt_rows = prompt_tile_rows(self.group)
        shape = StepBucket(
            sum(counts), len(counts), logits, nodes,
            tiles=len(few), tile_rows=1 if max(few, default=1) == 1 else FEW_ROWS,
            prompt_tiles=sum(-(-count // prompt_rows) for count in many), prompt_rows=prompt_rows,
        )  # fmt: skip
        return self._with_splits(shape, max(lengths))

    def _with_splits(self, shape: StepBucket, longest: int = 0) -> StepBucket:
        """Return the shape with room for the splits of sequences of up to ``longest`` keys (0: the longest there are)."""
        most = -(-(longest or self.longest) // self.split_keys)
        if most == 1:
            return replace(shape, split_keys=self.split_keys)
        more = most - 1
        return replace(
            shape,
            tile_room=min(shape.tiles * more, FEW_ROOM),
            prompt_room=min(shape.prompt_tiles * more, PROMPT_ROOM),
            split_rows=min(shape.rows, MOST_SPLIT_ROWS),
            split_lines=min(shape.rows * most, MOST_LINES),
            split_keys=self.split_keys,
        )

    def _decode_of(self, counts: Sequence[int]) -> StepBucket | None:
        """Rows are packed: one sequence may use what another leaves, up to FEW_ROWS. A step without drafts has the plain decode
        shape of its batch size.
        """
        total = sum(counts)
        batch = next((size for size in BATCHES if size >= len(counts)), None)
        if batch is None:
            return None
        width = next((width for width in WIDTHS if width * batch >= total), None)
        if width is None or width * batch > MOST_TOTAL:
            return None
        return self.decode(batch, 2 if width == 1 and max(counts) > 1 else width)

    def _mixed_of(self, counts: Sequence[int], nodes: int) -> StepBucket | None:
        """No shape, but kernel by kernel, where more than a quarter of many rows would be padding."""
        total = sum(counts)
        rows = next((rows for rows in MIXED_ROWS if rows >= total), None)
        if rows is None or (rows > CHEAP_ROWS and 4 * total < 3 * rows):
            return None
        drafted = nodes > 0 or any(1 < count <= FEW_ROWS for count in counts)
        shape = self.mixed(rows, drafted)
        return shape if len(counts) <= shape.batch else None
