"""What the dialects' ways to say how tokens are drawn have in common."""

from __future__ import annotations

from dataclasses import replace

from inferd.chat import SamplingOptions


def allowing_no_share(sampling: SamplingOptions) -> SamplingOptions:
    """Return how tokens are drawn with ``top_p`` 0 read as the vendors do: the likeliest token alone is left."""
    return sampling if sampling.top_p else replace(sampling, temperature=0.0, top_p=1.0)
