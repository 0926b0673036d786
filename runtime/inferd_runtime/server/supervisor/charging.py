"""Charges tokens to tenants while they are generated: in one message a second for all of them."""

from __future__ import annotations

import contextlib

import anyio

from inferd.protocol import InferdError
from inferd_runtime.server.supervisor.engine_supervisor import EngineSupervisor
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.session.wire import GetProduced, ProducedTokens

CHARGE_SECONDS = 1.0
"""How long tokens may be generated before they are charged."""


async def charge_produced_tokens(engine: EngineSupervisor, use: TenantUse) -> None:
    """Ask the engine for what each tenant has generated, and charge it, for ever."""
    while True:
        await anyio.sleep(CHARGE_SECONDS)
        with contextlib.suppress(InferdError):  # there is no engine now: it generates nothing
            produced = await engine.call(GetProduced(), ProducedTokens)
            for tenant, tokens in produced.tenants.items():
                use.charge_tokens(tenant, tokens)
