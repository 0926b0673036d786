"""The plain way through a model with kernels for the attention: transformers' own modules over paged rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import PagedRows
from inferd_runtime.models.passes.plain import PlainPass


class WriteKv(Protocol):
    """Writes rows of K and V to cache slots."""

    def __call__(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor, /) -> None:
        """``key`` and ``value`` [T, Hkv, D], caches [pages, page_size, Hkv, D], ``slots`` int64[T], -1: nowhere."""
        ...


class PagedAttention(Protocol):
    """Attends over page tables."""

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, rule: AttentionRule, /) -> Tensor:
        """``query`` [T, H, D] -> [T, H, Dv]."""
        ...


class RowsPass(Protocol):
    """A forward pass over paged rows that never waits for the device."""

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: PagedRows,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        logit_rows: Tensor,
        hidden_rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """``tokens`` and ``positions`` int64[T], ``logit_rows`` int64[R]: logits [R, V], and hidden states [Hn, E]."""
        ...


@dataclass(slots=True)
class RowsLayout:
    """What travels through the modules in place of :class:`~inferd_runtime.models.passes.attention.StepLayout`."""

    rows: PagedRows
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    write_kv: WriteKv
    paged_attention: PagedAttention
    hidden_rows: Tensor | None = None
    hidden: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Write k [T, Hkv, D] and v [T, Hkv, Dv], then attend with q [1, H, T, D]: [1, T, H, Dv]."""
        keys, values = self.keys[layer], self.values[layer]
        self.write_kv(key.contiguous(), value.contiguous(), keys, values, self.rows.slots)
        out = self.paged_attention(query[0].transpose(0, 1).contiguous(), keys, values, self.rows, rule)
        return out[None]


class KernelPass:
    """Runs the model as transformers wrote it, with ``write_kv`` and ``paged_attention`` where its attention was."""

    def __init__(self, model: nn.Module, write_kv: WriteKv, paged_attention: PagedAttention) -> None:
        self._run = PlainPass(model)
        self._write_kv = write_kv
        self._paged_attention = paged_attention

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: PagedRows,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        logit_rows: Tensor,
        hidden_rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """See :class:`RowsPass`."""
        layout = RowsLayout(rows, keys, values, self._write_kv, self._paged_attention, hidden_rows)
        logits = self._run(tokens, positions, layout, logit_rows)
        return logits, layout.hidden
