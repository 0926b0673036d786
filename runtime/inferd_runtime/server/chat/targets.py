"""What a client's ``model`` stands for: a model that is served, an adapter of one, or a program that serves chat."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from inferd.chat import ChatRequest
from inferd.protocol import NotFound
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.chat.direct import ChatMain, direct_answer
from inferd_runtime.server.chat.launched import launched_answer
from inferd_runtime.server.dialects.exchange import unknown_model
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.supervisor.runtime import Runtime

CHAT = "chat"


@dataclass(frozen=True)
class ChatTarget:
    """Who answers: ``program``, or the built-in one; ``model`` and ``adapter`` are what it is told to use ("" is none)."""

    program: Program | None = None
    model: str = ""
    adapter: str = ""


class ChatServing:
    """Finds who answers a request, and has it answered."""

    def __init__(self, runtime: Runtime, programs: ProgramLibrary, main: ChatMain) -> None:
        self._runtime = runtime
        self._programs = programs
        self._main = main

    async def target(self, name: str, tenant: str) -> ChatTarget:
        """Return what a name stands for. Raises NotFound, and Unavailable while no engine answers."""
        if name in (model.name for model in self._runtime.models.models):
            return ChatTarget(await self._chat_program(tenant), model=name)
        program = await self._find(name, tenant)
        if program is None or program.serves != CHAT:
            raise unknown_model(name)
        return ChatTarget(program)

    def answer(
        self, target: ChatTarget, request: ChatRequest, tenant: str
    ) -> AbstractAsyncContextManager[AnswerSource]:
        """Return the answer, which is written while its block runs."""
        request = replace(request, model=target.model, adapter=target.adapter)
        if target.program is None:
            return direct_answer(self._runtime, tenant, self._main, request)
        return launched_answer(self._runtime, tenant, target.program, request)

    async def _chat_program(self, tenant: str) -> Program | None:
        """Return the tenant's own chat program where the operator allows one and the tenant has it; None: the built-in one."""
        reference = self._runtime.settings.chat_program
        return None if not reference else await self._find(reference, tenant)

    async def _find(self, reference: str, tenant: str) -> Program | None:
        try:
            return await self._programs.find(reference, tenant)
        except NotFound:
            return None
