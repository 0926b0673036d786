"""A program's parameters as command-line options, and what was given for them as the arguments of a launch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferd.program.interface import Interface, Parameter
from inferd.protocol import InvalidRequest
from inferd_runtime.cli.answers import ShownInterface, answer_as

PREFIX = "parameter_"
INPUT = "input"
OptionReader = Callable[[str], Any]


@dataclass(frozen=True)
class ProgramInterface:
    """What the options are made from: an interface read from source here, or told by a server."""

    parameters: Sequence[Parameter]
    definitions: Mapping[str, Any]
    doc: str = ""
    takes_any: bool = False

    @classmethod
    def of(cls, interface: Interface) -> ProgramInterface:
        """Return the options' interface of one that was read from source."""
        return cls(interface.parameters, interface.definitions, interface.doc, interface.takes_any)

    @classmethod
    def from_json(cls, value: Any) -> ProgramInterface:
        """Return the interface that a server describes. Raises InternalError for what is none."""
        answer_as(ShownInterface, value)
        parameters = answer_as(list[Parameter], value["parameters"])
        arguments = value["arguments"]
        return cls(parameters, arguments.get("$defs", {}), value["doc"], arguments["additionalProperties"])

    @property
    def names(self) -> frozenset[str]:
        """The parameters' names, which an option of our own must not take."""
        return frozenset(parameter.name for parameter in self.parameters)


def add_program_options(parser: argparse.ArgumentParser, interface: ProgramInterface) -> None:
    """Add an option for each parameter, and ``--input`` for all at once (unless a parameter has that name)."""
    group = parser.add_argument_group("the program's parameters")
    for parameter in interface.parameters:
        pair = f"no_{parameter.name}" not in interface.names  # --no-NAME may be another one's
        _add_parameter(group, parameter, resolved(parameter.schema, interface.definitions), pair)
    if INPUT not in interface.names:
        help_text = "all parameters as one JSON object; - reads it from standard input; options win over it"
        group.add_argument("--input", dest="whole_input", default=None, metavar="JSON", help=help_text)


class _AppendPlace(argparse.Action):
    """Appends what each place of a tuple reads; what is too much is read as the last place, and refused by the program."""

    def __init__(self, *args: Any, readers: Sequence[OptionReader], **options: Any) -> None:
        super().__init__(*args, **options)
        self._readers = readers

    def __call__(self, _parser: Any, namespace: argparse.Namespace, text: Any, _option: str | None = None) -> None:
        values = getattr(namespace, self.dest) or []
        try:
            value = self._readers[min(len(values), len(self._readers) - 1)](text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*values, value])


def _add_parameter(group: argparse._ArgumentGroup, parameter: Parameter, schema: dict[str, Any], pair: bool) -> None:
    options = _spellings(parameter.name)
    several = "; may be given several times" if schema.get("type") == "array" else ""
    common: dict[str, Any] = {"dest": PREFIX + parameter.name, "default": None, "help": _help(parameter) + several}
    if schema.get("type") == "boolean" and pair:
        group.add_argument(*options, action=argparse.BooleanOptionalAction, **common)
    elif "prefixItems" in schema:
        readers = [reader_of(place) for place in schema["prefixItems"]]
        group.add_argument(*options, action=_AppendPlace, readers=readers, metavar="ITEM", **common)
    elif schema.get("type") == "array":
        reader = reader_of(schema.get("items", {}))
        group.add_argument(*options, action="append", type=reader, metavar="ITEM", **common)
    else:
        group.add_argument(*options, type=reader_of(schema), metavar=_metavar(schema), **common)


def _spellings(name: str) -> list[str]:
    """Return ``--max-tokens``, which help shows, then ``--max_tokens``, which is accepted too."""
    dashed = "--" + name.replace("_", "-")
    return [dashed] if "_" not in name else [dashed, f"--{name}"]


def _help(parameter: Parameter) -> str:
    kind = parameter.annotation or "any JSON value"
    end = "required" if parameter.required else f"default {parameter.default_text}"
    described = parameter.schema.get("description", "")
    return f"{described + '; ' if described else ''}{kind}; {end}".replace("%", "%%")


def _metavar(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "{" + ",".join(str(choice) for choice in schema["enum"]) + "}"
    return {"string": "TEXT", "integer": "N", "number": "X"}.get(str(schema.get("type")), "JSON")


def resolved(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference followed, and an optional one (``T | None``) as ``T``: leaving it out says None."""
    if "$ref" in schema:
        return {"type": "object", **definitions.get(str(schema["$ref"]).rpartition("/")[2], {})}
    members = [member for member in schema.get("anyOf", []) if member.get("type") != "null"]
    if len(members) == 1:
        return resolved(members[0], definitions)
    return schema


def reader_of(schema: dict[str, Any]) -> OptionReader:
    """Return what turns an option's text into the value that a schema asks for. The readers raise ArgumentTypeError."""
    if "enum" in schema:
        return _choice_reader(schema["enum"])
    simple: dict[str, OptionReader] = {"string": str, "integer": _integer, "number": _number, "boolean": _boolean}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in simple:
        return simple[kind]
    return _any_value if not schema or "anyOf" in schema else _json


def _choice_reader(choices: Sequence[Any]) -> OptionReader:
    by_text = {choice if isinstance(choice, str) else json.dumps(choice): choice for choice in choices}

    def read(text: str) -> Any:
        if text not in by_text:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(by_text)}, got {text!r}")
        return by_text[text]

    return read


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value - value != 0:  # neither NaN nor infinity can be sent as JSON
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return text == "true"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected JSON: {error}") from None


def _any_value(text: str) -> Any:
    """Return a value of open type: the JSON, or the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def arguments_of(parsed: argparse.Namespace, interface: ProgramInterface) -> dict[str, Any]:
    """Return the launch's arguments. Raises InvalidRequest that names an unknown or missing parameter."""
    arguments = read_input(getattr(parsed, "whole_input", None))
    for name in arguments:
        if name not in interface.names and not interface.takes_any:
            raise InvalidRequest(f"--input: the program has no parameter {name!r}")
    for parameter in interface.parameters:
        given = getattr(parsed, PREFIX + parameter.name)
        if given is not None:
            arguments[parameter.name] = given
        elif parameter.required and parameter.name not in arguments:
            raise InvalidRequest(f"the program needs {_spellings(parameter.name)[0]}")
    return arguments


def read_input(text: str | None) -> dict[str, Any]:
    """Return the object of ``--input``. Raises InvalidRequest."""
    if text is None:
        return {}
    try:
        value = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise InvalidRequest(f"--input: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"--input: expected a JSON object, got {type(value).__name__}")
    return value
