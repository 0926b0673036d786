"""The tokens file: which token means which tenant, its role, and what the tenant may have."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.server.tenancy.quotas import QUOTA_FIELDS, Role, read_quota, read_quotas
from inferd_runtime.settings.settings import Settings

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class TokenLine:
    """One line of the tokens file: ``token tenant [role=admin] [QUOTA=VALUE]...``."""

    token: str
    tenant: str
    role: Role
    options: Mapping[str, float]


def check_tenant(name: str) -> None:
    """Raise InvalidRequest for what is no tenant's name."""
    if not TENANT.fullmatch(name):
        raise InvalidRequest(
            f"a tenant's name has up to 64 letters, digits, dots, dashes and underscores, not {name!r}"
        )


def tenant_options(settings: Settings) -> dict[str, dict[str, float]]:
    """Return the quotas that the tokens file gives to tenants. Raises InvalidRequest."""
    options: dict[str, dict[str, float]] = {}
    for line in read_token_lines(settings.tokens_file) if settings.tokens_file is not None else ():
        if line.options:
            options.setdefault(line.tenant, {}).update(line.options)
    return options


def load_tenancy(settings: Settings) -> Tenancy:
    """Return what tenants may hold of the engine and what their shares are, as it is when the engine starts.

    For all ``tenant_pages``, for some what the settings ``quota`` and the tokens file say.
    """
    table = read_quotas(settings.quota).over(tenant_options(settings))
    lines = read_token_lines(settings.tokens_file) if settings.tokens_file is not None else []
    admins = {line.tenant for line in lines if line.role is Role.ADMIN}

    def limits(name: str) -> TenantLimits:
        quotas = table.of(name, Role.ADMIN if name in admins else Role.USER)
        return TenantLimits(quotas.kv_pages or settings.tenant_pages or 0, quotas.weight)

    return Tenancy(limits(""), {name: limits(name) for name in table.tenants.keys() | admins})


def read_private(path: Path, what: str) -> str:
    """Return the text of a file with secrets. Raises InvalidRequest if it cannot be read, or others may read or change it."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                raise InvalidRequest(f"{what} {path} is open to other users (mode {mode:o}): chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{what} {path} cannot be read: {error}") from None


def read_token_lines(path: Path) -> list[TokenLine]:
    """Return the lines; empty ones and those that start with ``#`` are left out.

    Raises InvalidRequest that names the line that is wrong, or how the file has to be protected.
    """
    found: dict[str, TokenLine] = {}
    for number, line in enumerate(read_private(path, "the tokens file").splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(parts) < 2 or not TENANT.fullmatch(parts[1]) or parts[0] in found:
            raise InvalidRequest(f"{where}: expected a token of its own and a tenant's name")
        found[parts[0]] = _read_line(parts, where)
    return list(found.values())


def _read_line(parts: list[str], where: str) -> TokenLine:
    role, options = Role.USER, {}
    for part in parts[2:]:
        if part in ("role=admin", "role=user"):
            role = Role(part.removeprefix("role="))
            continue
        try:
            name, value = read_quota(part)
        except InvalidRequest as error:
            known = "role=admin, role=user, or a quota: " + ", ".join(QUOTA_FIELDS)
            raise InvalidRequest(f"{where}: {error.message}; behind the tenant stands {known}") from None
        options[name] = value
    return TokenLine(parts[0], parts[1], role, options)
