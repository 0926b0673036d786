"""The command line's parsers: settings as options, and argparse's complaints as InvalidRequest."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.output import say
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.settings.setting import SettingField
from inferd_runtime.settings.settings import FIELDS, Settings
from inferd_runtime.settings.sources import Sources, resolve

CLIENT_SETTINGS = ("url", "token", "ca", "state_dir", "host", "port")
LIMIT_SETTINGS = Limits.__struct_fields__
OPTIONS = argparse.Action([], "options", nargs=argparse.OPTIONAL)


class _HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Help whose usage line has the positional arguments alone: the options are listed below it."""

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: object, prefix: str | None = None
    ) -> None:
        shown = [OPTIONS, *(action for action in actions if not action.option_strings)]
        super().add_usage(usage, shown, (), prefix)


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviations that raises InvalidRequest, as every other mistake does.

    ``description`` and ``usage`` may be a program's own text: they are shown as they are, without control sequences.
    """

    def __init__(self, verb: str, description: str = "", *, usage: str | None = None, add_help: bool = True) -> None:
        super().__init__(
            prog=f"inferd {verb}", description=_as_it_is(description) if "%(prog)" in description else description,
            usage=None if usage is None else _as_it_is(usage), allow_abbrev=False, add_help=add_help,
            formatter_class=_HelpFormat,
        )  # fmt: skip

    def print_help(self, file: Any = None) -> None:
        """Show the help."""
        say(self.format_help().removesuffix("\n"), file)

    @cached_property
    def settings(self) -> argparse._ArgumentGroup:
        """The group of the options that are settings."""
        return self.add_argument_group("settings")

    def action(self, option: str) -> argparse.Action | None:
        """Return what an option does, written without a value; None if there is none of that name."""
        return next((action for action in self._actions if option in action.option_strings), None)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line. Raises InvalidRequest."""
        raise InvalidRequest(message, usage=self.format_usage().strip())


def _as_it_is(text: str) -> str:
    """Return a text that argparse formats, as it does each usage, and each description that has ``%(prog)``."""
    return text.replace("%", "%%")


def add_settings(parser: Parser, names: Iterable[str], taken: frozenset[str] = frozenset()) -> None:
    """Add options for settings, except names that are ``taken``. Values stay text until all sources are merged."""
    for name in names:
        field = FIELDS[name]
        if field.flag.removeprefix("--").replace("-", "_") in taken:
            continue
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if field.kind is bool else {}
        parser.settings.add_argument(
            field.flag, dest=f"setting_{name}", default=None, metavar="VALUE", help=_help(field),
            action="append" if field.read else "store", **alone,
        )  # fmt: skip
    if "config" not in taken:
        parser.settings.add_argument(
            "--config", dest="config_file", type=Path, metavar="FILE", help="a TOML file with settings"
        )


def _help(field: SettingField) -> str:
    return (
        field.help
        if "default" in field.help or not field.default_text
        else f"{field.help}; default: {field.default_text}"
    )


def add_verbs(parser: Parser, verbs: Mapping[str, str], settings: Iterable[str]) -> dict[str, Parser]:
    """Add verbs, whose help texts these are, with options for settings and ``--json``; return their parsers."""

    def made(**options: str) -> Parser:
        verb = options["prog"].rpartition(" ")[2]
        return Parser(f"{parser.prog.removeprefix('inferd ')} {verb}", options.get("description") or "")

    added = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=made)  # type: ignore[call-overload]
    parsers: dict[str, Parser] = {
        verb: added.add_parser(verb, help=text, description=text) for verb, text in verbs.items()
    }
    for one in parsers.values():
        add_settings(one, settings)
        add_json(one, "print JSON")
    return parsers


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option ``--json``."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


def settings_of(*parsed: argparse.Namespace) -> Settings:
    """Return the settings in force; of several parsed parts, a later one wins. Raises InvalidRequest."""
    flags: dict[str, Any] = {}
    config: Path | None = None
    for part in parsed:
        for key, value in vars(part).items():
            if key.startswith("setting_") and value is not None:
                flags[key.removeprefix("setting_")] = value
        config = getattr(part, "config_file", None) or config
    return resolve(Sources(flags, os.environ, config))
