"""`format`: what is enforced, what becomes a pattern, what is an annotation.

The specification makes `format` an annotation unless a reader chooses to assert it. Formats that the backend enforces
stay as they are, except dates and times, of which it knows no calendar. Of the other names that the specification
defines, those that are regular become a pattern, which is narrower: some exotic valid texts are refused. `regex` is no
regular language; its pattern takes expressions with groups two deep. A complement (`not`, `oneOf`) leaves out what any
reader might take for the format. Two names of draft 3 become their later ones. Every
other name is an annotation and is dropped.
"""

from __future__ import annotations

from inferd_grammar.rewrites.base import CannotRewrite, Schema, View
from inferd_grammar.rewrites.patterns import complement

ENFORCED = frozenset(("email", "hostname", "ipv4", "ipv6", "uri", "uuid"))
_BEYOND_ASCII = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"
_POINTER = r"(?:\/(?:[^\/~]|~[01])*)*"


def _reference(beyond: str, *, scheme: bool = False) -> str:
    """Pattern of an RFC 3986 or 3987 reference: scheme (optional unless asked for) to fragment; no IP in brackets."""
    part = rf"a-zA-Z0-9\-._~!$&'()*+,;={beyond}"
    escaped = r"%[0-9a-fA-F]{2}"
    name, first, char = rf"(?:[{part}]|{escaped})", rf"(?:[{part}@]|{escaped})", rf"(?:[{part}:@]|{escaped})"
    more = rf"(?:\/{char}*)*"
    host = rf"\/\/(?:(?:{name}+@)?{name}+(?::[0-9]{{0,4}})?{more}|\/{char}*{more})"
    rooted = rf"\/(?:{char}+{more})?"
    tail = rf"(?:\?(?:{char}|[\/?])*)?(?:\#(?:{char}|[\/?])*)?"
    absolute = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{host}|{rooted}|{char}+{more})?"
    return rf"^{absolute}{tail}$" if scheme else rf"^(?:{absolute}|{host}|{rooted}|{first}+{more})?{tail}$"


_IDN_ATOM = r"[^\s@\"\\()<>\[\],:;.\x00-\x1F\x7F]+"


def _regex() -> str:
    """Return the pattern of expressions that every dialect understands: groups two deep, common ranges, counts in order."""
    escape = r"\\[dDwWsSbBnrtfv.^$|()\[\]{}*+?\/\\\-]"
    member = r"(?:a-z|A-Z|0-9|a-f|A-F|[^\\\[\]\-&~^]|\\[dDwWsSnrtfv.^$|()\[\]{}*+?\/\\\-])"
    ordered = "|".join(
        (*(f"{low},[{low}-9]" for low in range(10)), "[0-9],[1-9][0-9]{1,2}", "[1-9][0-9],[1-9][0-9]{2}")
    )
    count = rf"(?:(?:[*+?]|\{{(?:[0-9]{{1,3}},?|{ordered})\}})\??)?"
    atom = rf"(?:[^\\()\[\]{{}}*+?|^$]|{escape}|\[\^?{member}+-?\])"
    inner = rf"(?:{atom}{count}|[\^$])*"
    for _ in range(2):
        group = rf"\((?:\?:)?{inner}(?:\|{inner})*\)"
        inner = rf"(?:(?:{atom}|{group}){count}|[\^$])*"
    return rf"^{inner}(?:\|{inner})*$"


# Days that the calendar has, from year 1 on; no leap seconds, which most readers refuse.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_DATE = (
    rf"(?:{_LEAP}|{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,12}})?(?:[Zz]|[+\-]{_CLOCK})"
# As many digits as readers hold: in days together less than a thousand million.
_N, _SECONDS = "[0-9]{1,6}", "[0-9]{1,9}S"
_DAYS = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_HOURS = f"T(?:{_N}H(?:{_N}M(?:{_SECONDS})?)?|{_N}M(?:{_SECONDS})?|{_SECONDS})"
# Labels of an internationalised name, of scripts in which every character may stand and is written from left to right.
_IDN_CHAR = r"a-z0-9\u00DF-\u00F6\u00F8-\u00FF\u03AC-\u03CE\u0430-\u045F\u3041-\u3096\u4E00-\u9FA5\uAC00-\uD7A3"
_IDN_LABEL = rf"(?:[{_IDN_CHAR}](?:-?[{_IDN_CHAR}]){{0,11}}|[a-zA-Z0-9](?:-?[a-zA-Z0-9]){{0,30}})"

# The package `uri-template` takes no length of four digits.
_VARIABLE = r"[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?::[1-9][0-9]{0,2}|\*)?"
_VARIABLES = f"{_VARIABLE}(?:,{_VARIABLE})*"

ALIASES = {"host-name": "hostname", "ip-address": "ipv4"}
PATTERNS = {
    "idn-email": rf"^{_IDN_ATOM}(?:\.{_IDN_ATOM})*@{_IDN_LABEL}(?:\.{_IDN_LABEL}){{0,3}}$",
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "duration": f"^P(?:{_N}W|{_DAYS}(?:{_HOURS})?|{_HOURS})$",
    "idn-hostname": rf"^{_IDN_LABEL}(?:\.{_IDN_LABEL}){{0,3}}$",
    "iri": _reference(_BEYOND_ASCII, scheme=True),
    "iri-reference": _reference(_BEYOND_ASCII),
    "json-pointer": f"^{_POINTER}$",
    "regex": _regex(),
    "time": f"^{_TIME}$",
    # `jsonschema` takes no digit behind a zero.
    "relative-json-pointer": rf"^(?:0|[1-9]+0?)(?:\#|{_POINTER})$",
    "uri-reference": _reference(""),
    # RFC 6570: literals, and expressions with names, operators and modifiers.
    "uri-template": r"^(?:[a-zA-Z0-9\-._~:\/?\#\[\]@!$&()*+,;=]|%[0-9a-fA-F]{2}"
    r"|\{[+\#.\/;?&]?" + _VARIABLES + r"\})*$",
}
_MAIL_BOUNDS = (r"^[^@]{1,64}@[^.]{1,63}(?:\.[^.]{1,63})*$", r"^[^@]*@[\s\S]{1,253}$")
BOUNDS = {"email": _MAIL_BOUNDS, "hostname": (r"^[\s\S]{1,253}$",), "idn-email": _MAIL_BOUNDS}
"""Patterns of the lengths that a format allows (RFC 1123, 5321), which the backend does not know."""
_LONE_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9\\-]{0,61}[a-zA-Z0-9])?"
_FEW_LABELS = rf"{_LONE_LABEL}(?:\.{_LONE_LABEL}){{0,2}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-\/=?^_`{|}~]{1,31}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"


def _groups(most: int) -> str:
    """Return an expression of no group of an IPv6 address up to ``most``, of which an IPv4 address is the last two."""
    if most < 2:
        return f"(?:{_GROUP}){{0,{most}}}"
    return rf"(?:(?:{_GROUP}:){{0,{most - 1}}}{_GROUP}|(?:{_GROUP}:){{0,{most - 2}}}{_IPV4})?"


def _ipv6() -> str:
    """Return the pattern of RFC 4291's addresses: eight groups, or fewer and one `::` for those that are zero."""
    whole = rf"(?:{_GROUP}:){{6}}(?:{_GROUP}:{_GROUP}|{_IPV4})"
    begun = (rf"{_GROUP}(?::{_GROUP}){{{before - 1}}}::{_groups(7 - before)}" for before in range(1, 8))
    return rf"^(?:{whole}|::{_groups(7)}|{'|'.join(begun)})$"


NAMES = {
    "email": rf"^{_ATOM}(?:\.{_ATOM})?@{_FEW_LABELS}$",
    "hostname": f"^{_FEW_LABELS}$",
    "idn-email": rf"^{_IDN_ATOM[:-1]}{{1,64}}@{_FEW_LABELS}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": _ipv6(),
    "uri": _reference("", scheme=True),
    "uuid": "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}
"""Patterns of the formats that the backend enforces, for texts where it does not: one for each, lengths in it."""

WIDE = {
    "date": "^[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9]{2}-?[0-9]?|[0-9]{3})$",
    "date-time": "^[0-9]{4}-?[0-9]{2}-?[0-9]{2}[Tt _][0-9]",
    "duration": "^[+\\-]?[Pp][Tt]?(?:[0-9.,]|$)",
    "email": "@",
    "hostname": r"^[a-zA-Z0-9_\-][a-zA-Z0-9.\-_]*$",
    "idn-email": "@",
    "ipv4": r"^[0-9]+(?:\.[0-9]+){3}$",
    "ipv6": "^[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*(?:%.*)?$",
    "iri": r"^[a-zA-Z][a-zA-Z0-9+.\-]*:",
    "json-pointer": r"^(?:\/|$)",
    "relative-json-pointer": r"^[0-9]+(?:\#$|\/|$)",
    "time": "^[Tt]?[0-9]{1,2}:[0-9]{2}",
    "uri": r"^[a-zA-Z][a-zA-Z0-9+.\-]*:",
    "uuid": r"^(?:urn:uuid:)?\{?(?:[0-9a-fA-F]{4}-?){8}\}?$",
}
"""Patterns of all texts that some reader takes for the format: what is not found in them has it for none.

The other names have no such pattern: readers take nearly every text for a `regex` or a reference.
"""


def wide(name: str) -> str | None:
    """Return the pattern in which all texts of a format are found; None where there is none."""
    return WIDE.get(ALIASES.get(name, name))


def in_patterns(name: str) -> str | None:
    """Return the pattern `^...$` of a format where the backend enforces none; None for an annotation."""
    name = ALIASES.get(name, name)
    return {**PATTERNS, **NAMES}.get(name)


def positive(view: View) -> tuple[View, list[Schema]]:
    """Return the view without its format, and what stands for it: the format if the backend knows it, a pattern, its lengths."""
    if "format" not in view.words:
        return view, []
    name = ALIASES.get(view.words["format"], view.words["format"])
    asked = [PATTERNS.get(name), *BOUNDS.get(name, ())]
    parts: list[Schema] = [{"format": name}] if name in ENFORCED else []
    return view.without("format"), [*parts, *({"pattern": pattern} for pattern in asked if pattern is not None)]


def negative(view: View) -> list[Schema]:
    """Return schemas of what fails the format for every reader that asserts it: nothing for a name that is an annotation.

    Raises CannotRewrite for a format that has no wide pattern.
    """
    name = view.words["format"]
    pattern = wide(name)
    if pattern is not None:
        return [{"type": "string", "pattern": complement(pattern)}]
    if name in ENFORCED or name in PATTERNS:
        raise CannotRewrite(f"the complement of format {name!r} is not supported", view.at("format"))
    return []
