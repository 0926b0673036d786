"""The proof at load: our paged logits against the model's own, on random tokens.

The probe sees what a layer hands to the attention, and nothing of what a model does beside it: state that runs from token to
token (convolutions, recurrences), positions that are counted instead of read, rows that see each other because they share a
batch. So two sequences of random tokens run in three steps over scattered pages (a chunk alone; its second chunk beside the
other sequence's first; a single token of each), and their logits are compared with one pass of the model's eager attention.

It always runs, for every family and every checkpoint. It costs four passes over at most 48 tokens, little beside reading the
weights, and what it refuses would have been wrong text. It proves nothing about positions behind its 24 tokens: windows and
chunks longer than that are read off the model's mask functions (:mod:`reach`). In float16 and bfloat16, where logits differ by
rounding alone, it finds gross errors only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from inferd_runtime.models.batch import Batch, Ids, Span
from inferd_runtime.models.checks.reach import UnsupportedAttention
from inferd_runtime.models.passes.attention import lay_out
from inferd_runtime.models.passes.plain import PlainPass
from inferd_runtime.models.shape import KvShape

TOKENS = 24
PAGE = 4
PAGES = ((1, 3, 5, 7, 9, 11), (0, 2, 4, 6, 8, 10))
STEPS = (((0, 15), (0, 0)), ((15, 23), (0, 8)), ((23, 24), (8, 9)))
"""From and to of each sequence."""
# Placeholders of images and sounds stand at the end of a vocabulary.
TEXT_TOKENS = 1000
EXACT = 1e-3
ROUNDED = 0.2


class LogitCheck:
    """Two sequences of random tokens and the model's own logits of them; made before the model is switched to ours.

    ``own`` is the model that gives these, another than ``model`` where that is divided between ranks.
    """

    def __init__(self, model: Any, own: Any) -> None:
        self._model = model
        self._divided = own is not model
        self._like: Tensor = next(model.parameters())
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        random = np.random.default_rng(0)
        self._tokens: Ids = random.integers(min(vocabulary, TEXT_TOKENS), size=(2, TOKENS))
        self._expected = self._own_logits(own)

    @torch.inference_mode()
    def _own_logits(self, own: Any) -> Tensor:
        """Return the model's own logits float32[2, TOKENS, V].

        Eager attention, because other implementations leave out what they do not know; and no positions, because a family
        may count them otherwise than from 0 (RoBERTa).
        """
        own.set_attn_implementation("eager")
        tokens = torch.from_numpy(self._tokens).to(self._like.device)
        logits: Tensor = own(input_ids=tokens, use_cache=False).logits
        return logits.float()

    @torch.inference_mode()
    def compare(self, kv: KvShape) -> None:
        """Raise UnsupportedAttention when the model, switched to ours, gives other logits than it gave on its own."""
        keys, values = ([self._cache(*shape) for shape in shapes] for shapes in (kv.keys, kv.values))
        for step in STEPS:
            batch = _batch(self._tokens, step)
            layout = lay_out(batch, keys, values, PAGE)
            arrays = (
                torch.from_numpy(a).to(self._like.device) for a in (batch.tokens, batch.positions, batch.logit_rows)
            )
            tokens, positions, rows = arrays
            got = PlainPass(self._model)(tokens, positions, layout, rows).float()
            own = torch.cat([self._expected[i, a:b] for i, (a, b) in enumerate(step)])[rows]
            self._judge(got, own)

    def _cache(self, heads: int, width: int) -> Tensor:
        return torch.zeros(2 * len(PAGES[0]), PAGE, heads, width, dtype=self._like.dtype, device=self._like.device)

    def _judge(self, got: Tensor, own: Tensor) -> None:
        """Raise UnsupportedAttention unless every row of ``got`` [R, V] agrees with ``own``; most of them in narrower types."""
        spread = (own - own.mean(-1, keepdim=True)).abs().amax(-1).clamp_min(1e-6)
        off = (got - own).abs().amax(-1) / spread
        exact = self._like.dtype == torch.float32
        worst, allowed = (float(off.max()), EXACT) if exact else (float(off.median()), ROUNDED)
        if not worst <= allowed:
            raise UnsupportedAttention(
                f"its logits differ from its own attention's by {worst:.2g} of their spread ({allowed:g} is allowed): "
                + ("the plan by which it is divided between ranks is wrong, or " if self._divided else "")
                + "it carries state beside attention, or counts positions by itself"
            )


def _batch(tokens: Ids, step: tuple[tuple[int, int], ...]) -> Batch:
    """Return one ragged step: of each sequence the tokens from a to b.

    The rows are asked for in reverse, so that a model which gives them all, whatever was asked, is found.
    """
    spans, first = [], 0
    for pages, (a, b) in zip(PAGES, step, strict=True):
        if b > a:
            spans.append(Span(first, b - a, a, pages[: -(-b // PAGE)]))
        first += b - a
    positions = np.concatenate([np.arange(a, b) for a, b in step])
    homes = np.concatenate(
        [np.asarray(pages)[np.arange(a, b) // PAGE] for pages, (a, b) in zip(PAGES, step, strict=True)]
    )
    return Batch(
        tokens=np.concatenate([tokens[i, a:b] for i, (a, b) in enumerate(step)]),
        positions=positions,
        slots=homes * PAGE + positions % PAGE,
        logit_rows=np.arange(first)[::-1].copy(),
        spans=spans,
    )
