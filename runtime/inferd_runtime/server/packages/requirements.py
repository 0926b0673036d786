"""What a program may depend on, as PEP 508 writes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from inferd.protocol import InvalidRequest, LimitExceeded

GUEST_PYTHON = "3.14"
"""The sandbox's Python. A test in the sandbox compares."""
PROVIDED = frozenset({"inferd", "inferlet"})
"""What the sandbox has already."""
MAX_REQUIREMENTS = 32
MAX_LENGTH = 200
SHOWN = 80


def checked_requirements(dependencies: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements that are not provided, each once, in a fixed order and one way of writing.

    Raises InvalidRequest for what is no requirement or names a URL or file, LimitExceeded for too many.
    """
    named = set(dependencies)
    if len(named) > MAX_REQUIREMENTS:  # before they are read, which takes up to 0.4 ms each
        raise LimitExceeded(
            f"the program names {len(named)} dependencies; it may name {MAX_REQUIREMENTS}", limit="dependencies",
            value=MAX_REQUIREMENTS, raise_with="fewer dependencies",
        )  # fmt: skip
    parsed = map(_parsed, sorted(named))
    return tuple(sorted({str(one) for one in parsed if canonicalize_name(one.name) not in PROVIDED}))


def check_python(wanted: str) -> None:
    """Raises InvalidRequest if ``requires-python`` leaves out the sandbox's Python, or cannot be read."""
    if len(wanted) > MAX_LENGTH:
        raise InvalidRequest(f"requires-python has {len(wanted)} characters; it may have {MAX_LENGTH}")
    try:
        fits = SpecifierSet(wanted).contains(GUEST_PYTHON, prereleases=True)
    except InvalidSpecifier as error:
        raise InvalidRequest(f"requires-python: {str(error)[:SHOWN]}") from None
    if not fits:
        raise InvalidRequest(f"requires-python is {wanted[:SHOWN]!r}: the sandbox's Python is {GUEST_PYTHON}")


def _parsed(text: str) -> Requirement:
    if len(text) > MAX_LENGTH:
        raise InvalidRequest(f"the dependency {text[:SHOWN]!r}... has {len(text)} characters; it may have {MAX_LENGTH}")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise InvalidRequest(f"the dependency {text[:SHOWN]!r} cannot be read: {str(error).splitlines()[0]}") from None
    if requirement.url:
        raise InvalidRequest(
            f"the dependency {requirement.name!r} names a URL: dependencies come from the package index of the server"
        )
    # Any text may follow it: pip reads one with / as a path.
    if any(one.operator == "===" for one in requirement.specifier):
        raise InvalidRequest(f"the dependency {requirement.name!r} has ===, which is not supported: write ==")
    requirement.name = canonicalize_name(requirement.name)
    return requirement
