"""A function's parameters, whatever its annotations name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name. Raises TypeError or ValueError for what has none.

    From Python 3.14 on annotations are evaluated when they are read, and one that names nothing would raise NameError here:
    they are given as texts there.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.STRING).parameters
    return inspect.signature(function).parameters
