"""Where settings come from: a flag wins over the environment, that over the file, that over the default.

The environment name of a setting is its name in capitals after ``INFERD_``; the file is TOML with the same names at the top
level. It is the one that ``--config`` or ``INFERD_CONFIG`` names, else ``inferd/config.toml`` under ``$XDG_CONFIG_HOME``.
Several models are ``--model`` several times, a list (of texts, or of tables with ``name`` and options) in the file, and
separated by ``;`` in the environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferd.protocol import InvalidRequest
from inferd_runtime.settings.settings import ENGINE_FIELDS, FIELDS, OTHER_FIELDS, EngineSettings, Settings

CONFIG_FILE = "config.toml"
OTHER_VARIABLES = ("INFERD_CONFIG", "INFERD_CACHE_DIR")
XDG_DIRECTORIES = {"data_dir": "XDG_DATA_HOME", "state_dir": "XDG_STATE_HOME"}


@dataclass(frozen=True)
class Sources:
    """Where settings come from. ``flags`` holds only what was given on the command line, by setting name."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None


def resolve(sources: Sources) -> Settings:
    """Return the settings in force. Raises InvalidRequest that names the flag, variable or file key that is wrong."""
    environment = sources.environment
    layers: list[tuple[Callable[[str], str], Mapping[str, Any]]] = [
        (str, {n: f"{environment[key]}/inferd" for n, key in XDG_DIRECTORIES.items() if environment.get(key)}),
        (lambda name: f"key {name} of the configuration file", _read_file(sources)),
        (lambda name: FIELDS[name].variable, _from_environment(environment)),
        (lambda name: FIELDS[name].flag, {n: value for n, value in sources.flags.items() if value is not None}),
    ]
    values: dict[str, Any] = {}
    for place, layer in layers:
        values |= {name: FIELDS[name].convert(place(name), value) for name, value in layer.items()}
    for name, value in values.items():
        FIELDS[name].validate(value)
    engine = EngineSettings(**{name: values[name] for name in ENGINE_FIELDS if name in values})
    settings = Settings(engine=engine, **{name: values[name] for name in OTHER_FIELDS if name in values})
    _check_together(settings)
    paths = {name: getattr(settings, name) for name in OTHER_FIELDS}
    expanded: dict[str, Any] = {name: path.expanduser() for name, path in paths.items() if isinstance(path, Path)}
    return dataclasses.replace(settings, **expanded)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return what is said of variables that look like settings and are none: an orchestrator's, or slips."""
    known = {*OTHER_VARIABLES, *(one.variable for one in FIELDS.values())}
    found = []
    for name in sorted(name for name in environment if name.startswith("INFERD_") and name not in known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        found.append(f"{name} is the variable of no setting{f'; there is {near[0]}' if near else ''}")
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[one.variable] for name, one in FIELDS.items() if one.variable in environment}


def _read_file(sources: Sources) -> dict[str, Any]:
    environment = sources.environment
    named = sources.config or (Path(environment["INFERD_CONFIG"]) if "INFERD_CONFIG" in environment else None)
    path = (named or Path(environment.get("XDG_CONFIG_HOME") or "~/.config") / "inferd" / CONFIG_FILE).expanduser()
    if not path.exists():
        if named is not None:
            raise InvalidRequest(f"the configuration file {path} does not exist")
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path}: {error}") from None
    unknown = values.keys() - FIELDS.keys()
    if unknown:
        raise InvalidRequest(f"{path}: there is no setting {', '.join(sorted(unknown))}")
    return values


def _check_together(settings: Settings) -> None:
    """Raise InvalidRequest for what depends on more than one setting, or is part of a model's options."""
    for model in settings.engine.models:
        model.checked()
    if settings.max_workers < settings.workers:
        raise InvalidRequest(f"max_workers ({settings.max_workers}) is less than workers ({settings.workers})")
