"""What a client's ``model`` stands for: a model that is served, an adapter of one, or a program that serves chat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial

from inferd.chat import ChatRequest
from inferd.protocol import AdapterInfo, Adapters, ListAdapters, NotFound
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.chat.direct import DirectChat
from inferd_runtime.server.chat.launched import launched_answer
from inferd_runtime.server.chat.tenant_sessions import TenantSessions
from inferd_runtime.server.dialects.exchange import unknown_model
from inferd_runtime.server.dialects.openai.model_list import OWNER, ModelEntry
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.programs.registry import Entry
from inferd_runtime.server.supervisor.runtime import Runtime

CHAT = "chat"


@dataclass(frozen=True)
class ChatTarget:
    """What answers: ``program``, or the built-in one; ``model`` and ``adapter`` are what it is told to use ("" is none)."""

    program: Program | None = None
    model: str = ""
    adapter: str = ""


class ChatServing:
    """Finds what answers a request, and has it answered."""

    def __init__(
        self,
        runtime: Runtime,
        programs: ProgramLibrary,
        sessions: TenantSessions,
        direct: DirectChat,
        aliases: Mapping[str, str],
        pace: AnswerPace,
    ) -> None:
        self._aliases = aliases
        self._runtime = runtime
        self._programs = programs
        self._sessions = sessions
        self._direct = direct
        self._pace = pace
        self._started = time.time()

    def resolve_alias(self, name: str) -> str:
        """Return the name that an alias stands for; any other name unchanged."""
        return self._aliases.get(name, name)

    async def target(self, name: str, tenant: str) -> ChatTarget:
        """Return what a name stands for: a served model, else a program, else an adapter. Raises NotFound, and Unavailable while
        no engine answers.
        """
        name = self.resolve_alias(name)
        if name in (model.name for model in self._runtime.models.models):
            return ChatTarget(await self._chat_program(tenant), model=name)
        program = await self._find(name, tenant)
        if program is not None and program.serves == CHAT:
            return ChatTarget(program)
        return await self.model_target(name, tenant)

    async def model_target(self, name: str, tenant: str) -> ChatTarget:
        """Return the served model, or the adapter of one, that a name stands for. Raises NotFound."""
        name = self.resolve_alias(name)
        if name in (model.name for model in self._runtime.models.models):
            return ChatTarget(model=name)
        for adapter in await self._adapters(tenant):
            if adapter.name == name:
                return ChatTarget(await self._chat_program(tenant), adapter.model, adapter.name)
        raise unknown_model(name)

    async def entries(self, tenant: str) -> list[ModelEntry]:
        """Return what a tenant's clients may name: served models, their adapters, and the tenant's programs that serve chat."""
        models = self._runtime.models.models
        sizes = {model.name: model.max_context for model in models}
        found = [ModelEntry(model.name, self._started, max_context=model.max_context) for model in models]
        for adapter in await self._adapters(tenant):
            owner = OWNER if adapter.shared else tenant
            found.append(ModelEntry(adapter.name, self._started, owner, adapter.model, sizes.get(adapter.model, 0)))
        known = {entry.id: entry for entry in found}
        found += [replace(known[model], id=name) for name, model in self._aliases.items() if model in known]
        newest: dict[str, Entry] = {}
        for entry in await self._programs.entries(tenant):
            newest.setdefault(entry.name, entry)
        found += [ModelEntry(each.name, each.created_at, tenant) for each in newest.values() if each.serves == CHAT]
        return list({entry.id: entry for entry in reversed(found)}.values())[::-1]

    async def entry(self, name: str, tenant: str) -> ModelEntry:
        """Return one of :meth:`entries`, or a version ``NAME@VERSION`` of a program that serves chat. Raises NotFound."""
        for found in await self.entries(tenant):
            if found.id == name:
                return found
        for each in await self._programs.entries(tenant):
            if each.serves == CHAT and f"{each.name}@{each.version}" == name:
                return ModelEntry(name, each.created_at, tenant)
        raise unknown_model(name)

    def answer(
        self, target: ChatTarget, tenant: str, request: ChatRequest
    ) -> AbstractAsyncContextManager[AnswerSource]:
        """Return the answer, which is written while its block runs."""
        request = replace(request, model=target.model, adapter=target.adapter)
        if target.program is None:
            return self._direct.answer(tenant, request)
        return launched_answer(self._runtime, tenant, target.program, request, partial(self._pace.turn, tenant))

    async def _chat_program(self, tenant: str) -> Program | None:
        """Return the tenant's own chat program where the operator allows one and the tenant has it; None: the built-in one."""
        reference = self._runtime.settings.chat_program
        return None if not reference else await self._find(reference, tenant)

    async def _adapters(self, tenant: str) -> list[AdapterInfo]:
        async with self._sessions.open(tenant) as calls:
            loaded: Adapters = await calls.call(ListAdapters())
        return loaded.adapters

    async def _find(self, reference: str, tenant: str) -> Program | None:
        try:
            return await self._programs.find(reference, tenant)
        except NotFound:
            return None
