"""What helps a program that asked the SDK for something that it has not, or called it in another way than it is called."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import ModuleType

import inferd
from inferd.calls.streamed import Streamed

_CALLED = re.compile(r"([\w.]+)\(\) (?:got |missing |takes )")
_AWAITED = re.compile(r"(?:object (\w+)|'(\w+)' object) can't be (?:used in 'await'|awaited)")
"""As Python says it up to 3.13, and from 3.14 on."""
_IMPORTED = re.compile(r"cannot import name '(\w+)'")
_CLASS_NAME = re.compile(r"\b[A-Z]\w+")
_MOST_NAMES = 40


def hint_for(error: BaseException) -> str:
    """Return what the SDK has instead of what a program asked of it; "" for an error about anything else."""
    if isinstance(error, TypeError):
        return _parameters_of(error) or _done_already(error) or _members_beside(error)
    if isinstance(error, ImportError) and error.name and _is_public(error.name):
        wanted = _IMPORTED.match(str(error))
        return (_home_of(wanted[1]) or _names_like(wanted[1])) if wanted else ""
    if isinstance(error, AttributeError):
        return _members_of(error)
    return ""


def _parameters_of(error: TypeError) -> str:
    """Return which parameters a function of the SDK has, where it was called with others."""
    called = _CALLED.match(str(error))
    if called is None:
        return ""
    path = called[1].removesuffix(".__init__").split(".")
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    for module in _modules():
        found = getattr(module, path[0], None)
        owners = [frame.f_globals.get(path[0], found) for frame in last]
        for name in path[1:]:
            found = getattr(found, name, None)
        if callable(found) and f"{found.__module__}".startswith("inferd.") and owners == [getattr(module, path[0])]:
            return f"its parameters are {_written(inspect.signature(found))}{_makers(found)}"
    return ""


def _makers(found: object) -> str:
    """Return which class methods make an instance of a class, if any do."""
    if not isinstance(found, type):
        return ""
    methods = [name for name, each in vars(found).items() if isinstance(each, classmethod) and not name.startswith("_")]
    makers = [name for name in methods if getattr(found, name).__annotations__.get("return") == found.__name__]
    return f"; {', '.join(f'{found.__name__}.{name}' for name in makers)} make one" if makers else ""


def _done_already(error: TypeError) -> str:
    """Return what to do where something of the SDK was awaited that has nothing to wait for."""
    awaited = _AWAITED.match(str(error))
    name = awaited and (awaited[1] or awaited[2])
    known = name and any(isinstance(vars(module).get(name), type) for module in _modules())
    return f"what makes a {name} is done at once: leave out `await`" if known else ""


def _members_beside(error: TypeError) -> str:
    """Return what the SDK's object has that was taken for another kind of value: `text += step`."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for name in _CLASS_NAME.findall(str(error)):
        for kind in (vars(module).get(name) for module in _modules()):
            if isinstance(kind, type) and all(frame.f_globals.get(name, kind) is kind for frame in frames):
                if issubclass(kind, Streamed):
                    return "" if kind.instead in str(error) else kind.instead
                return _list_of(kind, {*dir(kind), *getattr(kind, "__dataclass_fields__", ())})
    return ""


def _list_of(kind: type, names: Iterable[str]) -> str:
    """Return what an object has, of one that has few things."""
    public = sorted(name for name in names if not name.startswith("_"))
    return f"a {kind.__name__} has {', '.join(public)}" if 0 < len(public) <= _MOST_NAMES else ""


def _written(signature: inspect.Signature) -> str:
    """Return the names of parameters, those with a default with it, without types."""
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _members_of(error: AttributeError) -> str:
    """Return where a name of the SDK is that a module of it has not, or what one of its objects has."""
    if isinstance(error.obj, ModuleType):
        if not _is_public(error.obj.__name__):
            return ""
        name = error.name or ""
        return _home_of(name) or _contents_of(error.obj) or _names_like(name)
    kind = error.obj if isinstance(error.obj, type) else type(error.obj)
    if not _is_public(f"{kind.__module__}"):
        return ""
    return _list_of(kind, dir(error.obj))  # of the object: a dataclass's fields without a default are not in its class


def _home_of(name: str) -> str:
    """Return the import of a name that the SDK has somewhere."""
    homes = [module.__name__ for module in _modules() if name in getattr(module, "__all__", ())]
    return f"`from {homes[0]} import {name}` finds it" if homes else ""


def _names_like(name: str) -> str:
    """Return what the SDK calls nearly so, and its classes that have a method of this name."""
    owners = {each: getattr(inferd, each) for each in inferd.__all__}
    methods = [f"{owner}.{name}" for owner, kind in owners.items() if isinstance(kind, type) and name in vars(kind)]
    found = [*methods, *difflib.get_close_matches(name, owners)]
    return f"inferd has {', '.join(found)}" if found else ""


def _contents_of(module: ModuleType) -> str:
    """Return what a module of the SDK has, of one that is small."""
    made = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in made if not name.startswith("_")])
    return f"{module.__name__} has {', '.join(sorted(names))}" if 0 < len(names) <= _MOST_NAMES else ""


def _modules() -> Iterator[ModuleType]:
    return (module for name, module in sorted(sys.modules.items()) if _is_public(name))


def _is_public(module: str) -> bool:
    return module.partition(".")[0] == "inferd"
