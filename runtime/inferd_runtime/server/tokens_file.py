"""The tokens file: which token means which tenant, and what a tenant may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.settings.settings import Settings

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TENANT_OPTIONS = {"kv_pages": re.compile(r"\d{1,9}"), "weight": re.compile(r"\d{1,6}(\.\d{1,6})?")}


@dataclass(frozen=True)
class TokenLine:
    """One line of the tokens file: ``token tenant [kv_pages=N] [weight=W]``."""

    token: str
    tenant: str
    options: Mapping[str, float]


def read_tokens(path: Path) -> dict[str, str]:
    """The tenant of each token. Raises InvalidRequest that names the line that is wrong."""
    return {line.token: line.tenant for line in _read_lines(path)}


def load_tenancy(settings: Settings) -> Tenancy:
    """What tenants may hold and what their shares are: for all ``tenant_pages``, for some what the tokens file says."""
    default = TenantLimits(kv_pages=settings.tenant_pages or 0)
    options: dict[str, dict[str, float]] = {}
    for line in _read_lines(settings.tokens_file) if settings.tokens_file is not None else ():
        options.setdefault(line.tenant, {}).update(line.options)
    named = {
        tenant: TenantLimits(int(given.get("kv_pages", default.kv_pages)), given.get("weight", default.weight))
        for tenant, given in options.items()
        if given
    }
    return Tenancy(default, named)


def _read_lines(path: Path) -> list[TokenLine]:
    """Empty lines and lines that start with ``#`` are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"the tokens file {path} cannot be read: {error}") from None
    found: dict[str, TokenLine] = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(parts) < 2 or not TENANT.fullmatch(parts[1]) or parts[0] in found:
            raise InvalidRequest(f"{where}: expected a token of its own and a tenant's name")
        found[parts[0]] = TokenLine(parts[0], parts[1], dict(_option(part, where) for part in parts[2:]))
    return list(found.values())


def _option(text: str, where: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    pattern = TENANT_OPTIONS.get(name)
    if pattern is None or not pattern.fullmatch(value) or float(value) <= 0:
        raise InvalidRequest(f"{where}: expected kv_pages=N or weight=W above 0 behind the tenant, not {text!r}")
    return name, float(value)
