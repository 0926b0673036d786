"""What a settings class says about each of its fields beside type and default: help text, check, flag."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from inferd.protocol import InvalidRequest


@dataclass(frozen=True)
class Check:
    """A condition on a number. ``must``: the condition in words, behind "must"."""

    must: str
    holds: Callable[[float], bool]


POSITIVE = Check("be positive", lambda value: value > 0)
NOT_NEGATIVE = Check("not be negative", lambda value: value >= 0)


@dataclass(frozen=True)
class Setting:
    """The annotation of a field that can be set from outside: ``field: Annotated[int, Setting("...")] = 16``.

    ``check`` is applied to numbers alone. ``flag``: the command line's name where it is not the field's. ``read``: parses
    the value of a setting that may be given several times; raises InvalidRequest.
    """

    help: str
    check: Check = POSITIVE
    flag: str = ""
    read: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class SettingField:
    """One setting with its name, type and default."""

    name: str
    kind: Any
    default: Any
    setting: Setting

    @property
    def flag(self) -> str:
        """The command line's flag."""
        return self.setting.flag or "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"INFERD_{self.name.upper()}"

    def convert(self, place: str, value: Any) -> Any:
        """Return a text or a value of the file as this setting's type. Raises InvalidRequest that names the ``place``."""
        if self.kind in (Path, Path | None):
            if not isinstance(value, str | Path):
                raise InvalidRequest(f"{place}: expected a path, got {value!r}")
            return Path(value)
        try:
            return self.setting.read(value) if self.setting.read else msgspec.convert(value, self.kind, strict=False)
        except InvalidRequest as error:
            raise InvalidRequest(f"{place}: {error.message}") from None
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{place}: {error}, got {value!r}") from None

    def check(self, value: Any) -> None:
        """Raise InvalidRequest if a number does not pass this setting's check."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not self.setting.check.holds(value):
            raise InvalidRequest(f"{self.name} must {self.setting.check.must}, got {value}")


def setting_fields(owner: type) -> Iterator[SettingField]:
    """Yield the fields of a settings class that are annotated with a :class:`Setting`, in order."""
    hints = get_type_hints(owner, include_extras=True)
    for field in dataclasses.fields(owner):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            kind, setting, *_ = get_args(hint)
            yield SettingField(field.name, kind, field.default, setting)
