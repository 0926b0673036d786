"""The options of one draft model.

As text: ``NAME[,for=MODEL][,process=true][,timeout_ms=N][,choice=thompson|ucb][,dtype=...]...``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.option_lists import check_once, read_entries, read_entry, split_options
from inferd_runtime.models.options import ModelOptions

TIMEOUT_MS = 250
OWN = ("for", "process", "timeout_ms", "choice")
CHOICES = ("thompson", "ucb")
"""Bandits that choose between draft models. The first is the default."""


@dataclass(frozen=True)
class DraftOptions:
    """A draft model for ``target`` ("": the default model), in a ``process`` of its own or in a thread of the engine process.

    A step waits for its drafts at most ``timeout_ms``. ``choice``: the bandit that chooses between the target's draft models,
    one of CHOICES; "": the one that another of them names, else the default.
    """

    model: ModelOptions
    target: str = ""
    process: bool = False
    timeout_ms: int = TIMEOUT_MS
    choice: str = ""

    @classmethod
    def parse(cls, text: str) -> DraftOptions:
        """Read ``NAME[,key=value]``. Raises InvalidRequest that names the part that is wrong."""
        return cls.of(split_options("draft model", text))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DraftOptions:
        """Read a table with a ``name``. Raises InvalidRequest that names the key that is wrong."""
        model = ModelOptions.of({key: value for key, value in values.items() if key not in OWN})
        process, timeout = str(values.get("process", False)).lower(), str(values.get("timeout_ms", TIMEOUT_MS))
        if process not in ("true", "false"):
            raise InvalidRequest(f"draft model {model.name!r}: process must be true or false, got {process!r}")
        if not re.fullmatch(r"[1-9]\d{0,6}", timeout):
            raise InvalidRequest(
                f"draft model {model.name!r}: timeout_ms must be a positive whole number, got {timeout!r}"
            )
        choice = str(values.get("choice", ""))
        if choice not in CHOICES and "choice" in values:
            raise InvalidRequest(
                f"draft model {model.name!r}: choice must be one of {', '.join(CHOICES)}, got {choice!r}"
            )
        return cls(model, str(values.get("for", "")), process == "true", int(timeout), choice)

    def target_among(self, names: Sequence[str]) -> str:
        """Return the name of its target among the models ``names``. Raises NotFound if it is not there."""
        if self.target and self.target not in names:
            raise NotFound(f"draft model {self.model.name!r}: no model {self.target!r} is served")
        return self.target or names[0]


def choices_of(drafts: Sequence[DraftOptions], names: Sequence[str]) -> dict[str, str]:
    """Return the bandit's name for each target, of the models ``names``, that has draft models.

    Raises NotFound as :meth:`DraftOptions.target_among`, InvalidRequest if draft models of one target name different bandits.
    """
    said: dict[str, set[str]] = {}
    for draft in drafts:
        said.setdefault(draft.target_among(names), set()).update([draft.choice] if draft.choice else [])
    for target, choices in said.items():
        if len(choices) > 1:
            raise InvalidRequest(f"draft models of {target!r}: choice is {' here and '.join(sorted(choices))} there")
    return {target: next(iter(choices), CHOICES[0]) for target, choices in said.items()}


def read_drafts(value: Any) -> tuple[DraftOptions, ...]:
    """Return the draft models of a setting: one text with ``;`` between them, or a list of texts and tables.

    Raises InvalidRequest that names what is wrong, and the draft model that a model has twice.
    """
    drafts = read_entries(value, "a draft model", _read_draft)
    check_once("draft model", [(draft.model.name, draft.target) for draft in drafts])
    return drafts


def _read_draft(entry: Any) -> DraftOptions:
    return read_entry(entry, DraftOptions, DraftOptions.parse, DraftOptions.of, "a draft model's name or its table")
