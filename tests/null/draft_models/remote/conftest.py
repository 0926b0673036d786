"""A target whose draft model is behind a proxy, at a draft engine in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from draft_engines import Engine, Proxy, connected

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.models import DraftModel, DraftModels
from inferd_runtime.draft_models.remote.network_drafts import NetworkDrafts
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.counters import DraftModelCounters

PROMPT = [1, 2, 3, 4, 5]


class Five(DraftLength):
    """Always wants five tokens, however little that pays on a test's clock, and waits for them as long as it may."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 5, False

    def patience(self, count: int) -> float:
        return 0.05


class Stand:
    """A target without weights, and the way to its draft model."""

    def __init__(self, make_target: Callable[..., Any], engine: Engine, proxy: Proxy) -> None:
        self.engine, self.proxy = engine, proxy
        self.transport: NetworkDrafts = connected(proxy.port)
        self.link = DraftModelLink(self.transport, 512, 0.1, remote=True, counters=self.transport.counters)
        self.models = DraftModels([DraftModel("far", self.link, 12)], lengths=Five)
        self.while_verifying: Callable[[], object] | None = None
        self._make_target = make_target

    @property
    def counters(self) -> DraftModelCounters:
        return self.link.counters

    def plain(self, sampler: RowSampler, max_tokens: int = 60) -> list[int]:
        tokens: list[int] = self._make_target(0).generate(PROMPT, sampler, max_tokens=max_tokens)[0]
        return tokens

    def drafted(
        self, sampler: RowSampler, max_tokens: int = 60, poll: Callable[[], object] = lambda: None
    ) -> list[int]:
        """The tokens of a generation with the draft model; the loop rests as the engine process does."""

        def rest() -> None:
            poll()
            self.models.poll()
            self.transport.wait(min(0.001, self.models.patience(0.001)))

        drafter = self.models.open(tenant="tenant", sampler=sampler, prompt=len(PROMPT))
        target = self._make_target(0)
        if self.while_verifying is not None:
            target.engine.driver.forward = self._after(target.engine.driver.forward, self.while_verifying)
        tokens: list[int] = target.generate(PROMPT, sampler, drafter, max_tokens=max_tokens, poll=rest)[0]
        return tokens

    def _after(self, forward: Callable[[Any], Any], wait: Callable[[], object]) -> Callable[[Any], Any]:
        def verify(batch: Any) -> Any:
            wait()
            return forward(batch)

        return verify

    def answered(self) -> bool:
        """True if nothing is asked that has not been answered, or is about to be."""
        return not self.transport._open or bool(self.transport._link.events)

    def close(self) -> None:
        self.models.close()
        self.proxy.close()
        self.engine.close()


@pytest.fixture
def stand(make_target: Callable[..., Any], make_host: Callable[..., DraftHost]) -> Iterator[Stand]:
    engine = Engine(make_host(0))
    stand = Stand(make_target, engine, Proxy(engine.port))
    yield stand
    stand.close()
