"""Two gloo ranks on the CPU: this process leads, a child follows. And tiny models in folders, for both to load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import Any, NoReturn

from parallel_rank import KERNELS, with_kernels
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast

from inferd.protocol import InferdError
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.build import DriverOptions
from inferd_runtime.engine.drivers.parallel import LeadingDriver
from inferd_runtime.engine.drivers.parallel_commands import Loaded, decode_reply
from inferd_runtime.engine.drivers.parallel_parts import build_part, lead, measure_steps
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.parallel import join, leave

RANK = Path(__file__).with_name("parallel_rank.py")
SECONDS = 60.0
PAGE_SIZE = 4


def save(model: nn.Module, folder: Path, vocabulary: int) -> Path:
    """A model's folder, with a tokenizer of words that nobody reads; some families add special tokens of their own."""
    hub: Any = model
    hub.save_pretrained(folder)
    words = WordLevel({f"w{token}": token for token in range(vocabulary - 7)}, "w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return folder


def lost(error: InferdError) -> NoReturn:
    """What ends a real engine process."""
    raise AssertionError(error)


class Pair:
    """Rank 0's end."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._driver: LeadingDriver | None = None
        self._kernels = False

    def load(self, folder: str | Path, *, kernels: bool = False) -> LoadedModel:
        """A model, loaded in both ranks; the one before is given up. Raises what refuses it, in both."""
        self.give_up()
        self._kernels = kernels
        self._link.send_bytes(f"{KERNELS if kernels else ''}{folder}".encode())
        loaded = load(str(folder), ranks=2)
        assert self._link.poll(SECONDS)
        assert isinstance(decode_reply(self._link.recv_bytes()), Loaded)
        return loaded

    def lead(self, loaded: LoadedModel, pages: int, **options: Any) -> LeadingDriver:
        """Its driver, once both ranks have said what their steps take."""
        chosen, build = options_for(pages, **options), with_kernels if self._kernels else None
        assert measure_steps(loaded, chosen, [self._link]) == 0, "the CPU's memory is not counted"
        self._driver = lead(loaded, chosen, [self._link], lost, build)
        return self._driver

    def give_up(self) -> None:
        """Let the child go on to the next model."""
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def close(self) -> None:
        """Let the child end."""
        self.give_up()
        self._link.send_bytes(b"")


def options_for(pages: int, **options: Any) -> DriverOptions:
    """What both ranks build their drivers with."""
    return DriverOptions(pages, PAGE_SIZE, **{"most_rows": 64, **options})


def alone(folder: str | Path, pages: int) -> tuple[LoadedModel, Driver]:
    """The same model as a whole, in this process, run by transformers' modules, too."""
    loaded = load(str(folder))
    return loaded, build_part(loaded, options_for(pages))[0]


@contextmanager
def pair_of_ranks(folder: Path) -> Iterator[Pair]:
    """Both ranks in one group, which meets in a file of ``folder``; the child ends at the end."""
    before = dict(os.environ)
    ours, theirs = socketpair()
    store = folder / "store"
    command = [sys.executable, str(RANK), str(theirs.fileno()), str(store)]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**before, "OMP_NUM_THREADS": "1"})
    theirs.close()
    with Connection(ours.detach()) as link:
        pair = Pair(link)
        try:
            join(0, 2, "cpu", store, timeout_s=SECONDS)
            yield pair
            pair.close()
            assert child.wait(SECONDS) == 0
        finally:
            leave()
            child.kill()
            child.wait()
            os.environ.clear()
            os.environ.update(before)
