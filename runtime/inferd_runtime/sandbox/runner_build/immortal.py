"""The snapshot's objects, made immortal in the compiled runner: references to them are not counted.

CPython counts the references to an object in the object. So a program that calls a function of the SDK writes to the pages of its
code, its names and its classes. The first write to a page copies it, and for two of three such pages the copy ends up as the
original was. An object whose count is very high is immortal (PEP 683): its count is not changed, and it is never freed. Here the
objects of the snapshot get such a count in the compiled file, which each guest's memory is a mapping of. A guest tells where
they are, and each is written to only where the file has an object of that type, too.

Where a guest's memory is not found (:mod:`~inferd_runtime.sandbox.wasm.linear_memory`: elsewhere than on Linux), and with
another CPython than this is about, the file stays as it is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

from inferd.protocol import InternalError
from inferd_runtime.sandbox.wasm.linear_memory import read_map, region_at
from inferd_runtime.sandbox.wasm.loaded_runner import Guest, LoadedRunner
from inferd_runtime.sandbox.wasm.warm_up import RehearsalCalls

IMMORTAL = 5 << 28
"""``_Py_IMMORTAL_INITIAL_REFCNT`` of CPython 3.14 where a pointer has 32 bits (its Include/refcount.h)."""
MOST_COUNTED = 1 << 20
"""No object has so many references. What was freed has none, or an address instead, which is higher."""
OBJECT = struct.Struct("<II")
"""The beginning of every object: its count, and the address of its type."""
MEMORY_BYTES = 1 << 30
FIND_OBJECTS = """
import gc
import sys
from types import CodeType

LARGE = 64 << 10  # what is as large is given back when memory runs short

def main() -> list[list[int]]:
    if sys.version_info[:2] != (3, 14) or sys.maxsize >> 31:
        return [[], []]
    gc.disable()
    gc.unfreeze()
    types, found = {}, gc.get_objects()
    while found:
        each = found.pop()
        if id(each) not in types and not (type(each) is bytes and len(each) >= LARGE):
            types[id(each)] = id(type(each))
            found += (type(each), *gc.get_referents(each), *(parts(each) if type(each) is CodeType else ()))
    return [list(types), list(types.values())]

def parts(code):  # which the collector does not follow
    texts = code.co_name, code.co_qualname, code.co_filename, code.co_linetable, code.co_exceptiontable
    return code.co_consts, code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *texts
"""


def make_immortal(runner: Path) -> int:
    """Make the objects of a compiled runner's snapshot immortal. Returns how many."""
    loaded = LoadedRunner(runner)
    instance = loaded.instantiate()
    data = region_at(read_map(), instance.address) if instance.address is not None else None
    if data is None:
        return 0
    objects = _find_objects(Guest(loaded, instance, MEMORY_BYTES))
    loaded.discard(instance)
    with runner.open("r+b") as file:
        file.seek(data.offset)
        image = bytearray(file.read(data.end - data.start))
        made = pin(image, data.start - instance.memory.start, objects)
        file.seek(data.offset)
        file.write(image)
    return made


def pin(image: bytearray, start: int, objects: Iterable[tuple[int, int]]) -> int:
    """Make objects immortal in an image of the memory from address ``start`` on, where they are in it. Returns how many.

    ``objects``: addresses, each with that of the object's type.
    """
    made = 0
    for address, kind in objects:
        at = address - start
        if 0 <= at <= len(image) - OBJECT.size:
            count, kind_there = OBJECT.unpack_from(image, at)
            if kind_there == kind and 0 < count < MOST_COUNTED:
                OBJECT.pack_into(image, at, IMMORTAL, kind)
                made += 1
    return made


def _find_objects(guest: Guest) -> Iterable[tuple[int, int]]:
    """Return the addresses of a guest's objects and their types. Raises GuestTrap, and InternalError."""
    bundle = {"name": "objects", "files": {"main.py": FIND_OBJECTS}, "entry": "main.py"}
    ok, text = guest.run(RehearsalCalls(), json.dumps(bundle), "{}")
    if not ok:
        raise InternalError(f"the snapshot's objects were not found: {text}")
    addresses, kinds = json.loads(text)
    return zip(addresses, kinds, strict=True)
