"""HTTP: what ``inferd.http`` offers. Pie's Python programs have none yet."""

from __future__ import annotations

from inferd.http import Response, Secret, fetch, secret

__all__ = ["Response", "Secret", "fetch", "secret"]
