"""The process that finds a program's packages: asks the index, unpacks what came, writes the answer into a file, ends."""

from __future__ import annotations

import hashlib
import resource
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.parser import BytesHeaderParser
from pathlib import Path

import msgspec
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.layers import lower
from inferd_runtime.sandbox.messages import LockedPackage
from inferd_runtime.server.packages.messages import ANSWER_FILE, Answer, Packages, Question
from inferd_runtime.server.packages.pip_index import WITHOUT_NATIVE, PackageIndex
from inferd_runtime.server.packages.requirements import checked_requirements
from inferd_runtime.server.packages.wheels import check_total, wheel_files

MAX_ROUNDS = 4
MAX_WHEELS = 64
MAX_FILE = 64 << 20


def child_main(child: Child) -> int:
    """Answer one question. Returns the exit code."""
    question = child.settings(Question)
    child.seal()
    lower(resource.RLIMIT_FSIZE, MAX_FILE)  # pip fetches whole wheels where an index has no metadata
    folder = Path(question.folder)
    try:
        answer = Answer(packages=find_packages(question, folder))
    except InferdError as error:
        answer = Answer(error=error.to_wire())
    (folder / ANSWER_FILE).write_bytes(msgspec.json.encode(answer))
    return 0


def find_packages(question: Question, folder: Path) -> Packages:
    """Return the packages that meet the requirements. Raises what :class:`PackageIndex` and :func:`wheel_files` raise."""
    wanted, environment = set(question.requirements), _environment(question.python)
    for attempt in range(MAX_ROUNDS):
        here = folder / str(attempt)
        here.mkdir()
        PackageIndex(question.python, here).fetch(sorted(wanted))
        packages = _unpacked(sorted(here.glob("*.whl")))
        shutil.rmtree(here)  # the next round has the same room
        # pip looks at the markers of requirements for its own Python: what the sandbox's needs beside that is asked for.
        missing = set(checked_requirements(_required(packages, wanted, environment))) - wanted
        if not missing:
            return packages
        wanted |= missing
    raise InvalidRequest("the dependencies need more and more of others for the sandbox's Python")


def _unpacked(wheels: list[Path]) -> Packages:
    if len(wheels) > MAX_WHEELS:
        raise InvalidRequest(f"the dependencies need more than {MAX_WHEELS} packages")
    files: dict[str, bytes] = {}
    lock = []
    for path in wheels:
        content = path.read_bytes()
        name, version = _named(path.name)
        files |= wheel_files(content, path.name, without_native=name in WITHOUT_NATIVE)
        check_total(files)
        lock.append(LockedPackage(name, str(version), path.name, hashlib.sha256(content).hexdigest()))
    return Packages(files, tuple(lock))


def _named(file: str) -> tuple[str, Version]:
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except ValueError as error:  # packaging's errors are
        raise InvalidRequest(f"the index has a wheel with an odd name: {error}") from None
    return name, version


def _required(packages: Packages, wanted: Iterable[str], environment: dict[str, str]) -> Iterator[str]:
    """Yield what the packages require in the sandbox and is not among them. Extras that nothing needed asks for bring nothing."""
    there = {package.name for package in packages.lock}
    left = [requirement for path, text in packages.files.items() for requirement in _declared(path, text)]
    extras: dict[str, set[str]] = {}
    needed = list(map(Requirement, wanted))
    for one in needed:  # which grows
        extras.setdefault(canonicalize_name(one.name), set()).update(one.extras)
        split: dict[bool, list[tuple[str, Requirement]]] = {True: [], False: []}
        for owner, each in left:
            held = any(_holds(each.marker, environment, extra) for extra in ("", *extras.get(owner, ())))
            split[held].append((owner, each))
        left = split[False]
        for _, each in split[True]:
            needed.append(each)
            if canonicalize_name(each.name) not in there:
                each.marker = None
                yield str(each)


def _declared(path: str, text: bytes) -> Iterator[tuple[str, Requirement]]:
    """Yield a package and what it requires, if this is its metadata. What cannot be read requires nothing."""
    if not path.endswith(".dist-info/METADATA"):
        return
    headers = BytesHeaderParser().parsebytes(text)
    for requirement in headers.get_all("Requires-Dist", ()):
        with suppress(InvalidRequirement):
            yield canonicalize_name(str(headers.get("Name", ""))), Requirement(str(requirement))


def _holds(marker: Marker | None, environment: dict[str, str], extra: str) -> bool:
    """Return whether a marker holds. One that compares what cannot be compared does not."""
    try:
        return marker is None or marker.evaluate({**environment, "extra": extra})
    except (ValueError, LookupError):  # packaging's errors are
        return False


def _environment(python: str) -> dict[str, str]:
    """Return what markers ask about the sandbox."""
    return {
        "implementation_name": "cpython", "implementation_version": f"{python}.0", "os_name": "posix",
        "platform_machine": "wasm32", "platform_python_implementation": "CPython", "platform_release": "",
        "platform_system": "WASI", "platform_version": "", "python_full_version": f"{python}.0", "python_version": python,
        "sys_platform": "wasi",
    }  # fmt: skip
