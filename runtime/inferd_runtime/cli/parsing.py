"""The command line's parsers: settings as options, and argparse's complaints as InvalidRequest."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from inferd.protocol import InvalidRequest
from inferd_runtime.config import LIMIT_FLAGS, Settings, Sources, flag_of, resolve

SETTING_NAMES = tuple(field.name for field in dataclasses.fields(Settings))
CLIENT_SETTINGS = ("url", "token", "state_dir", "host", "port")
LIMIT_SETTINGS = tuple(LIMIT_FLAGS)
HELP = {
    "model": "tiny (embedded), a folder, or a name on the hub, with options of its own: tiny,dtype=bfloat16,pages=64; "
    "several models: give it several times, the first is the default",
    "device": "cpu, cuda or cuda:N",
    "dtype": "float32, bfloat16 or float16",
    "threads": "threads of the engine",
    "pages": "pages of the KV cache",
    "page_size": "tokens per page",
    "token_budget": "tokens that one step may feed",
    "swap_mb": "MiB of host memory for contexts that had to leave the cache; 0: they are computed again",
    "fixed_rows": "rows that every sequence computes in each step, so that drafts change no bit; 0: as many as it needs",
    "tensor_parallel": "processes that the model is divided between, each with its own GPU or a part of the CPU",
    "kv_dtype": "model or fp8: of the KV cache",
    "graphs": "on or off: whether steps are recorded as CUDA graphs, on a GPU",
    "products": "auto, torch or kernel: what multiplies up to 16 rows on a GPU; auto times both at load",
    "tenant_pages": "pages that a tenant may hold, where the tokens file says nothing else",
    "tokens_file": "lines of `token tenant [kv_pages=N] [weight=W]`",
    "data_dir": "where uploaded programs and saved contexts are kept",
    "snapshot_bytes": "bytes that a tenant's saved contexts may take on disk",
    "check": "true: look for leaked pages whenever the engine is idle",
    "speculation": "on or off: whether to draft for generations that leave it to the operator",
    "adapter": "NAME=FOLDER[,model=MODEL]: a LoRA adapter in PEFT's format for every tenant; may be given several times",
    "draft": "NAME[,for=MODEL][,process=true][,timeout_ms=N][,choice=thompson|ucb]: a draft model, with a model's "
    "options; may be given several times",
    "url": "the server's address",
    "token": "the access token",
    "wall_s": "seconds that the run may take",
    "cpu_s": "seconds of processor time that the program may use",
    "memory_mb": "MiB of memory that the program may use",
    "output_bytes": "bytes that the program may print",
}


class Parser(argparse.ArgumentParser):
    """argparse that knows no abbreviations and raises InvalidRequest, so that mistakes are reported like all others."""

    def __init__(self, verb: str, description: str = "", *, usage: str | None = None, add_help: bool = True) -> None:
        super().__init__(
            prog=f"inferd {verb}", description=description, usage=usage, allow_abbrev=False, add_help=add_help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Refuse the command line. Raises InvalidRequest."""
        raise InvalidRequest(message, usage=self.format_usage().strip())


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str], taken: frozenset[str] = frozenset()) -> None:
    """Options for settings (values stay text until all sources are merged), but for names that are ``taken``."""
    group = parser.add_argument_group("settings")
    for name in names:
        if flag_of(name).removeprefix("--").replace("-", "_") not in taken:
            group.add_argument(
                flag_of(name), dest=f"setting_{name}", default=None, metavar="VALUE", help=HELP.get(name),
                action="append" if name in ("model", "adapter", "draft") else "store",
            )  # fmt: skip
    if "config" not in taken:
        group.add_argument("--config", dest="config_file", type=Path, metavar="FILE", help="a TOML file with settings")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """The option ``--json``."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


def settings_of(*parsed: argparse.Namespace) -> Settings:
    """The settings in force; of several parsed parts, a later one wins. Raises InvalidRequest."""
    flags: dict[str, Any] = {}
    config: Path | None = None
    for part in parsed:
        for key, value in vars(part).items():
            if key.startswith("setting_") and value is not None:
                flags[key.removeprefix("setting_")] = value
        config = getattr(part, "config_file", None) or config
    return resolve(Sources(flags, os.environ, config))
