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

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast

from inferd.protocol import InferdError
from inferd_runtime.engine.drivers.parallel import LeadingDriver, build_part, lead
from inferd_runtime.engine.drivers.parallel_commands import Loaded, decode_reply
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
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

    def load(self, folder: str | Path) -> LoadedModel:
        """A model, loaded in both ranks; the one before is given up. Raises what refuses it, in both."""
        self.give_up()
        self._link.send_bytes(str(folder).encode())
        loaded = load(str(folder), ranks=2)
        assert self._link.poll(SECONDS)
        assert isinstance(decode_reply(self._link.recv_bytes()), Loaded)
        return loaded

    def lead(self, loaded: LoadedModel, pages: int) -> LeadingDriver:
        """Its driver."""
        self._driver = lead(loaded, pages, PAGE_SIZE, [self._link], lost)
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


def alone(folder: str | Path, pages: int) -> tuple[LoadedModel, TorchDriver]:
    """The same model as a whole, in this process, run by transformers' modules, too."""
    loaded = load(str(folder))
    return loaded, build_part(loaded, pages, PAGE_SIZE)[0]


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
