"""The options of one draft model.

As text: ``NAME[,for=MODEL][,process=true][,at=HOST:PORT[,tls=true|false]][,timeout_ms=N][,choice=thompson|ucb][,dtype=...]...``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.option_lists import check_once, read_entries, read_entry, split_options
from inferd_runtime.models.options import ModelOptions

TIMEOUT_MS = 250
OWN = ("for", "process", "at", "tls", "timeout_ms", "choice")
MOST_PORT = 65535
CHOICES = ("thompson", "ucb")
"""Bandits that choose between draft models. The first is the default."""


@dataclass(frozen=True)
class DraftAddress:
    """Where a draft engine on another machine listens. ``tls``: whether the connection is encrypted."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, text: str, tls: bool | None = None, *, first_port: int = 1) -> DraftAddress:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets. Without a word on TLS, it is off on this machine alone.

        Ports begin with ``first_port``. Raises InvalidRequest.
        """
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]{1,253})):(\d{1,5})", text)
        if found is None or not first_port <= int(found[3]) <= MOST_PORT:
            raise InvalidRequest(f"expected HOST:PORT, got {text!r}")
        host = found[1] or found[2]
        return cls(host, int(found[3]), not is_loopback(host) if tls is None else tls)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the address. A name other than localhost may mean anything."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True)
class DraftOptions:
    """A draft model for ``target`` ("": the default model): in a thread of the engine process, in a ``process`` of its own, or
    ``at`` a draft engine on another machine, which alone decides on the options of the model itself.

    A step waits for its drafts at most ``timeout_ms``. ``choice``: the bandit that chooses between the target's draft models,
    one of CHOICES; "": the one that another of them names, else the default.
    """

    model: ModelOptions
    target: str = ""
    process: bool = False
    timeout_ms: int = TIMEOUT_MS
    choice: str = ""
    at: DraftAddress | None = None

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
        at = _read_address(model, values)
        if at is not None and process == "true":
            raise InvalidRequest(f"draft model {model.name!r}: process and at are two places")
        return cls(model, str(values.get("for", "")), process == "true", int(timeout), choice, at)

    @property
    def beside(self) -> bool:
        """True if the engine process loads it for a thread of its own."""
        return not self.process and self.at is None

    def target_among(self, names: Sequence[str]) -> str:
        """Return the name of its target among the models ``names``. Raises NotFound if it is not there."""
        if self.target and self.target not in names:
            raise NotFound(f"draft model {self.model.name!r}: no model {self.target!r} is served")
        return self.target or names[0]


def _read_address(model: ModelOptions, values: Mapping[str, Any]) -> DraftAddress | None:
    """Return the address among a draft model's options. Raises InvalidRequest that names what is wrong."""
    tls = str(values["tls"]).lower() if "tls" in values else None
    if tls not in ("true", "false", None):
        raise InvalidRequest(f"draft model {model.name!r}: tls must be true or false, got {tls!r}")
    if "at" not in values:
        if tls is not None:
            raise InvalidRequest(f"draft model {model.name!r}: tls is for a draft model at HOST:PORT")
        return None
    if model != ModelOptions(model.name):
        raise InvalidRequest(
            f"draft model {model.name!r}: `inferd serve-draft` decides how a model that is elsewhere is loaded"
        )
    try:
        return DraftAddress.parse(str(values["at"]), None if tls is None else tls == "true")
    except InvalidRequest as error:
        raise InvalidRequest(f"draft model {model.name!r}: at: {error.message}") from None


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
