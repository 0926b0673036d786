"""`propertyNames`: a condition on strings, made of patterns, lists, lengths and formats, as one pattern.

All patterns in it are run side by side, and the condition is asked where a text may end. Narrower by formats, of which
the positive pattern is narrower and the wide one stands below a `not`, and by characters on which dialects differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from inferd_grammar.rewrites import formats
from inferd_grammar.rewrites.base import CannotRewrite, Translator, View
from inferd_grammar.rewrites.kinds import STRING, of_value
from inferd_grammar.rewrites.patterns import plain, where, with_length
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.strings import length_between, one_of

_Holds = Callable[[dict[str, bool]], bool]
"""Says of a string, by which patterns are found in it, whether a condition holds."""
_LENGTHS = ("minLength", "maxLength")


class NamesCondition:
    """One condition on names. Raises CannotRewrite for what is no condition on strings, or has no pattern."""

    def __init__(self, schema: Any, pointer: str, to: Translator) -> None:
        self._to = to
        self._atoms: dict[str, None] = {}
        self._lengths: dict[str, tuple[int, int | None]] = {}
        self._pointer = pointer
        self._holds = self._of(schema, pointer, True)

    def patterns(self) -> list[str]:
        """Return patterns that hold together where the condition does; none if it holds for every name.

        More than one only where no automaton reads them.
        """
        atoms = list(self._atoms)
        if not atoms and self._holds({}):
            return []
        alone = all(
            self._holds(dict.fromkeys(atoms, True) | {atom: found}) == found
            for atom in atoms
            for found in (True, False)
        )
        if len(atoms) == 1 and alone:
            return [self._understood(plain, atoms[0])]
        try:
            return [where(atoms, lambda found: self._holds(dict(zip(atoms, found, strict=True))))]
        except NotUnderstood as error:
            if alone and self._is_all_of(atoms):
                return self._shortened(atoms)
            raise CannotRewrite(f"this condition on property names is not supported: {error}", self._pointer) from error

    def _shortened(self, atoms: list[str]) -> list[str]:
        """Return patterns that hold together; of one beside a length a single one, where it has a loop to end earlier."""
        lengths, others = [a for a in atoms if a in self._lengths], [a for a in atoms if a not in self._lengths]
        if len(lengths) == len(others) == 1 and (most := self._lengths[lengths[0]][1]) is not None:
            with suppress(NotUnderstood):
                return [with_length(others[0], self._lengths[lengths[0]][0], most)]
        return atoms

    def _is_all_of(self, atoms: list[str]) -> bool:
        return len(atoms) <= 8 and not any(
            self._holds({atom: bool(bits >> n & 1) for n, atom in enumerate(atoms)})
            for bits in range(2 ** len(atoms) - 1)
        )

    def _understood(self, rewritten: Callable[[str], str], pattern: str) -> str:
        try:
            return rewritten(pattern)
        except NotUnderstood as error:
            raise CannotRewrite(f"this look-around is not supported: {error}", self._pointer) from error

    def _of(self, schema: Any, pointer: str, narrow: bool) -> _Holds:
        """Return what holds for fewer strings than the schema where it is not exact; for more, if not `narrow`."""
        if isinstance(schema, bool):
            return lambda found: schema
        view = self._to.view(schema, pointer)
        parts = [self._word(key, view, narrow) for key in view.words if key not in _LENGTHS]
        if set(_LENGTHS) & view.words.keys():
            least, most = int(view.words.get("minLength", 0)), view.words.get("maxLength")
            pattern = length_between(least, None if most is None else int(most))
            self._lengths[pattern] = least, most
            parts.append(self._found(pattern))
        return lambda found: all(part(found) for part in parts)

    def _word(self, key: str, view: View, narrow: bool) -> _Holds:
        word = view.words[key]
        if key == "type":
            return self._constant("string" in word)
        if key == "pattern":
            return self._found(word)
        if key in ("const", "enum"):
            listed = [value for value in ([word] if key == "const" else word) if of_value(value) in STRING]
            return self._found(one_of(listed)) if listed else self._constant(False)
        if key == "format":
            return self._format(view, narrow)
        if key == "not":
            inner = self._of(word, view.at("not"), not narrow)
            return lambda found: not inner(found)
        if key == "$ref" and (target := self._to.resolve(word)):
            return self._of(target[1], target[0], narrow)
        if key in ("allOf", "anyOf", "oneOf"):
            return self._joined(key, view, narrow)
        raise CannotRewrite(f"{key} of property names is not supported", view.at(key))

    def _joined(self, key: str, view: View, narrow: bool) -> _Holds:
        places = [(part, view.at(key, n)) for n, part in enumerate(view.words[key])]
        parts = [self._of(part, place, narrow) for part, place in places]
        if key == "allOf":
            return lambda found: all(part(found) for part in parts)
        if key == "anyOf" or not narrow:
            return lambda found: any(part(found) for part in parts)
        wide = [self._of(part, place, False) for part, place in places]
        return lambda found: any(part(found) for part in parts) and sum(part(found) for part in wide) == 1

    def _format(self, view: View, narrow: bool) -> _Holds:
        name = view.words["format"]
        pattern = formats.in_patterns(name) if narrow else formats.wide(name)
        if pattern is None and not narrow and formats.in_patterns(name) is not None:
            raise CannotRewrite(f"the complement of format {name!r} is not supported", view.at("format"))
        return self._constant(True) if pattern is None else self._found(pattern)

    def _found(self, pattern: str) -> _Holds:
        self._atoms[pattern] = None
        return lambda found: found[pattern]

    def _constant(self, value: bool) -> _Holds:
        return lambda found: value
