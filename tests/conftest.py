"""What holds for every test: no engine that it stepped has lost a page, or keeps a wrong one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from tiers import tier_of

from inferd_runtime.engine.engine import Engine
from inferd_runtime.testing.null_driver import NullDriver

Engines = WeakKeyDictionary[Engine, int]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What anyio's tests run on."""
    return "asyncio"


@pytest.fixture(scope="session")
def engines_alive() -> Iterator[Engines]:
    """Every engine of this process, with the number of steps after which it was last checked."""
    alive: Engines = WeakKeyDictionary()
    make = Engine.__init__

    def recorded(engine: Engine, *arguments: Any, **options: Any) -> None:
        make(engine, *arguments, **options)
        alive[engine] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", recorded)
        yield alive


@pytest.fixture(autouse=True)
def no_page_is_lost(engines_alive: Engines) -> Iterator[None]:
    """Re-add who holds what in the engines that the test has stepped, and check what is cached against the tokens."""
    yield
    for engine, checked in list(engines_alive.items()):
        if engine.steps > checked:
            engine.check_integrity()
            if isinstance(engine.driver, NullDriver):
                for context in engine.contexts:
                    engine.driver.check_sequence(context)
            engines_alive[engine] = engine.steps


def pytest_sessionstart() -> None:
    """Leave out the garbage collector while tests are collected, which makes hardly any garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but do not look at what was collected of the tests and their imports: it stays."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with the tier of its file."""
    for item in items:
        tier = tier_of(item.path)
        if tier is not None:
            item.add_marker(tier)
