"""Two gloo ranks on the CPU: this process leads, a child follows. And tiny models in folders, for both to load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
from inferd_runtime.engine.drivers.parallel import LeadingDriver, lead
from inferd_runtime.engine.drivers.parallel_commands import Loaded, decode_reply
from inferd_runtime.models.loading import LoadedModel, load
from inferd_runtime.models.parallel import join, leave

RANK = Path(__file__).with_name("parallel_rank.py")
SECONDS = 60.0


def save(model: nn.Module, folder: Path, vocabulary: int) -> Path:
    """A model's folder, with a tokenizer of words that nobody reads."""
    any_model: Any = model
    any_model.save_pretrained(folder)
    words = WordLevel({f"w{token}": token for token in range(vocabulary)}, "w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return folder


def lost(error: InferdError) -> NoReturn:
    """What ends a real engine process."""
    raise AssertionError(error)


class Pair:
    """Rank 0's end. Models are loaded in the order in which the child was told of them."""

    def __init__(self, link: Connection, child: subprocess.Popen[bytes]) -> None:
        self.link = link
        self.child = child
        self._driver: LeadingDriver | None = None

    def load(self, folder: str | Path) -> LoadedModel:
        """The next model, loaded in both ranks; the one before is given up."""
        if self._driver is not None:
            self._driver.close()
        loaded = load(str(folder), ranks=2)
        assert self.link.poll(SECONDS)
        assert isinstance(decode_reply(self.link.recv_bytes()), Loaded)
        return loaded

    def lead(self, loaded: LoadedModel, pages: int, page_size: int = 4) -> LeadingDriver:
        """Its driver."""
        self._driver = lead(loaded, pages, page_size, [self.link], lost)
        return self._driver

    def close(self) -> None:
        """End the last model."""
        if self._driver is not None:
            self._driver.close()


@contextmanager
def pair_of_ranks(store: Path, folders: Sequence[str | Path]) -> Iterator[Pair]:
    """Both ranks in one group; the child ends at the end."""
    ours, theirs = socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(RANK), str(theirs.fileno()), str(store), *map(str, folders)]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    with Connection(ours.detach()) as link:
        pair = Pair(link, child)
        try:
            join(0, 2, "cpu", store, timeout_s=SECONDS)
            yield pair
            pair.close()
            assert child.wait(SECONDS) == 0
        finally:
            leave()
            child.kill()
            child.wait()
