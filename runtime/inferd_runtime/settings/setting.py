"""What a settings class says about each of its fields beside type and default: help text, check, flag."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from inferd.protocol import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A condition on a number. ``must``: the condition in words, behind "must"."""

    must: str
    holds: Callable[[float], bool]


POSITIVE = Check("be positive", lambda value: value > 0)
NOT_NEGATIVE = Check("not be negative", lambda value: value >= 0)
WANTED: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def setting(
    default: T, help: str, check: Check = POSITIVE, *, flag: str = "", read: Callable[[Any], Any] | None = None
) -> T:
    """Return the default of a field that can be set from outside: ``page_size: int = setting(16, "tokens per page")``.

    ``check`` is applied to numbers alone. ``flag``: the command line's name where it is not the field's. ``read``: parses
    the value of a setting that may be given several times; raises InvalidRequest.
    """
    return dataclasses.field(default=default, metadata={"help": help, "check": check, "flag": flag, "read": read})


@dataclass(frozen=True)
class SettingField:
    """One setting: the arguments of :func:`setting`, with the field's name and type."""

    name: str
    kind: Any
    default: Any
    help: str
    check: Check
    flag: str
    read: Callable[[Any], Any] | None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"INFERD_{self.name.upper()}"

    @property
    def default_text(self) -> str:
        """The default as it is written on a command line; "" where there is none, or the help text describes it."""
        if isinstance(self.default, tuple):
            return ";".join(one.name for one in self.default)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "" if self.default is None else str(self.default)

    def convert(self, place: str, value: Any) -> Any:
        """Return a text or a value of the file as this setting's type. Raises InvalidRequest that names the ``place``."""
        if self.kind in (Path, Path | None):
            if not isinstance(value, str | Path):
                raise InvalidRequest(f"{place}: expected a path, got {value!r}")
            return Path(value)
        try:
            return self.read(value) if self.read else msgspec.convert(value, self.kind, strict=False)
        except InvalidRequest as error:
            raise InvalidRequest(f"{place}: {error.message}") from None
        except msgspec.ValidationError as error:
            names = get_args(self.kind) if get_origin(self.kind) is Literal else ()
            known = f"one of {', '.join(filter(None, names))}" if names else WANTED.get(self.kind)
            wanted = f"expected {known}" if known else error
            raise InvalidRequest(f"{place}: {wanted}, got {value!r}") from None

    def validate(self, value: Any) -> None:
        """Raise InvalidRequest if a number does not pass this setting's check."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not self.check.holds(value):
            raise InvalidRequest(f"{self.name} must {self.check.must}, got {value}")


def read_texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a setting that may be given several times: one text with ``;`` between them, or a list of texts."""
    entries = value.split(";") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        raise InvalidRequest(f"expected a text, or a list of texts, got {value!r}")
    return tuple(entry.strip() for entry in entries if entry.strip())


def setting_fields(owner: type) -> Iterator[SettingField]:
    """Yield the fields of a settings class that are made by :func:`setting`, in order."""
    kinds = get_type_hints(owner)
    for field in dataclasses.fields(owner):
        if field.metadata:
            flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
            yield SettingField(field.name, kinds[field.name], field.default, **{**field.metadata, "flag": flag})
