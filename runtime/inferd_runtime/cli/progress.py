"""What is slow at first use, shown on stderr while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from inferd_runtime.sandbox.runner_build.component import Progress, ensure_runner

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

CLEAR_LINE = "\x1b[2K"


class ProgressBar:
    """A bar on a terminal, one line per stage elsewhere. Nothing is shown, or imported for it, before the first update."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._stage = ""

    def update(self, progress: Progress) -> None:
        """Show the stage and how much of it is done."""
        if not sys.stderr.isatty():
            if progress.stage != self._stage:
                print(f"{progress.stage} ...", file=sys.stderr, flush=True)
        else:
            self._draw(progress)
        self._stage = progress.stage

    def stage(self, text: str) -> None:
        """Show what goes on, where nobody knows how long it takes."""
        self.update(Progress(text, 0.0))

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(console=Console(stderr=True), transient=True)
            self._bar.add_task(progress.stage, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=progress.stage, completed=progress.fraction)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def notice(text: str) -> Iterator[None]:
    """Show a line on a terminal while the body runs."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{text} ...", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)


def prepare_runner() -> str:
    """Build the sandbox's runner if this machine has none yet, with a progress bar; returns its path."""
    bar = ProgressBar()
    try:
        return str(ensure_runner(bar.update))
    finally:
        bar.close()
