"""What a launch asks of a program, checked before anything is started."""

from __future__ import annotations

from typing import Any

import msgspec

from inferd.protocol import InvalidRequest, LimitExceeded, shown
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.server.programs.bundles import Program, with_limits
from inferd_runtime.settings.settings import Settings


def check_arguments(program: Program, arguments: dict[str, Any]) -> str:
    """Return the arguments as JSON text. Raises InvalidRequest that names an unknown or missing one.

    Their types are checked where the program runs, against the annotations themselves.
    """
    parameters = {parameter.name: parameter for parameter in program.interface.parameters}
    for name in arguments:
        if name not in parameters and not program.interface.takes_any:
            known = ", ".join(parameters) or "nothing"
            raise InvalidRequest(f"{program.name} has no parameter {shown(name)}; it takes {known}", parameter=name)
    for name, parameter in parameters.items():
        if parameter.required and name not in arguments:
            raise InvalidRequest(f"{program.name} needs the parameter {name!r}", parameter=name)
    return msgspec.json.encode(arguments).decode()


def check_limits(program: Program, changes: dict[str, Any], settings: Settings) -> Limits:
    """Return a run's limits: the server's, changed by the program's own, changed by the request's; none above the server's
    maximum. Raises InvalidRequest, and LimitExceeded that names the maximum.
    """
    limits = with_limits(program.limits_over(settings.limits), changes)
    for name in Limits.__struct_fields__:
        most = getattr(settings.max_limits, name)
        if getattr(limits, name) > most:
            message = f"the limit {name} of {getattr(limits, name):g} is above this server's maximum of {most:g}"
            raise LimitExceeded(message, limit=name, value=most, raise_with=f"the server's max_{name}")
    return limits
