"""Formats and patterns of which a string must have exactly one, or must not have."""

from __future__ import annotations

import json
import random
import re
from ipaddress import IPv6Address
from itertools import combinations
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites.formats import WIDE, in_patterns, wide
from inferd_grammar.rewrites.patterns import finds

SAMPLES = {
    "date": ["2024-02-29"],
    "date-time": ["2024-02-29T23:59:59Z", "2024-01-01T00:00:00.5+01:00"],
    "time": ["23:59:59Z", "00:00:00.5+01:00"],
    "email": ["a.b@c.de"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::2"],
    "hostname": ["a-1.example.com"],
    "uri": ["https://a.b/c?d#e"],
    "duration": ["P1Y2M", "PT5S"],
    "uuid": ["3f2504e0-4f89-41d3-9a0c-0305e82c3301"],
    "json-pointer": ["", "/a/0"],
    "relative-json-pointer": ["1/a", "0#"],
    "iri": ["https://é.org/"],
    "idn-email": ["é@é.org"],
}


@pytest.fixture(scope="module")
def bytewise() -> GrammarCompiler:
    return GrammarCompiler(TokenTable.of_bytes())


def taken(bytewise: GrammarCompiler, schema: Any, values: list[Any]) -> list[Any]:
    """Return the values that a schema's masks take, none of which are held at the end alone."""
    compiled = bytewise.compile(JsonSchemaGrammar(schema))
    assert compiled.refusal is None
    found = []
    for value in values:
        matcher = compiled.matcher()
        ids = [byte + 1 for byte in json.dumps(value, ensure_ascii=False).encode()]
        if matcher.accept(ids) == len(ids) and matcher.may_end():
            found.append(value)
    return found


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_pattern_has_all_texts_of_its_format(name: str) -> None:
    assert [text for text in SAMPLES[name] if not finds(WIDE[name], text)] == []


@pytest.mark.parametrize("pair", list(combinations(["date", "date-time", "time", "email", "ipv4", "ipv6", "uuid"], 2)))
def test_one_of_two_formats_that_no_text_has_both_of(bytewise: GrammarCompiler, pair: tuple[str, str]) -> None:
    """They were refused, for want of a complement."""
    texts = [text for name in pair for text in SAMPLES[name]]
    schema = {"oneOf": [{"type": "string", "format": name} for name in pair]}
    assert taken(bytewise, schema, [*texts, "none of these", 1]) == texts


@pytest.mark.parametrize("name", WIDE)
def test_strings_that_must_not_have_a_format(bytewise: GrammarCompiler, name: str) -> None:
    others = ["none of these, surely", "é"]
    schema = {"type": "string", "not": {"format": name}}
    assert taken(bytewise, schema, [*SAMPLES[name], *others, None]) == others
    assert taken(bytewise, {"not": {"type": "string", "format": name}}, [*SAMPLES[name], *others, None]) == [
        *others,
        None,
    ]


@pytest.mark.parametrize(
    ("branches", "valid", "invalid"),
    [
        # What one reader takes for a date-time, another for none, is neither.
        ([{"format": "date"}, {"format": "hostname"}], ["a.b"], ["2024-02-29", "2024-02-30"]),
        ([{"format": "ipv4"}, {"format": "hostname"}], ["a.b", "1.2.3"], ["1.2.3.4", "01.2.3.4"]),
        ([{"format": "email"}, {"pattern": "^[a-z@.]+$"}], ["a", "1@b.c"], ["a@b.c"]),
        ([{"pattern": "^a+$"}, {"pattern": "^[ab]{2,}$"}], ["a", "ab", "bb"], ["aa", "b", "c"]),
        ([{"pattern": "^[a-f]"}, {"pattern": "[e-z]$"}, {"maxLength": 1}], ["ab", "zz", "1"], ["az", "e", "a", "11"]),
        ([{"const": "latest"}, {"pattern": r"^v?\d+$"}, {"format": "uuid"}], ["latest", "v1"], ["v", "late"]),
        ([{"format": "date"}, {"maxLength": 9}], ["2024-02-29", "abc"], ["2024-02-30"]),
    ],
)
def test_one_of_languages_that_overlap(
    bytewise: GrammarCompiler, branches: list[dict[str, Any]], valid: list[str], invalid: list[str]
) -> None:
    schema = {"type": "string", "oneOf": branches}
    assert taken(bytewise, schema, [*valid, *invalid]) == valid


def test_a_word_in_a_text_of_some_length(bytewise: GrammarCompiler) -> None:
    schema = {"type": "string", "pattern": r"\b(?:TODO|FIXME)\b", "maxLength": 100}
    assert taken(bytewise, schema, ["a TODO: é", "TODOS", "TODO" + " " * 97]) == ["a TODO: é"]


def test_a_condition_on_a_format_has_an_else(bytewise: GrammarCompiler) -> None:
    schema = {"type": "string", "if": {"format": "ipv4"}, "then": {"pattern": "^10"}, "else": {"format": "hostname"}}
    assert taken(bytewise, schema, ["10.0.0.1", "9.0.0.1", "a.b", "?"]) == ["10.0.0.1", "a.b"]


def test_what_masks_let_through_is_no_problem(bytewise: GrammarCompiler) -> None:
    """The validator took formats for annotations: a text had both of two branches, or the one that it must not have."""
    schemas: list[Any] = [{"oneOf": [{"format": "date"}, {"format": "time"}]}, {"not": {"format": "time"}}]
    for schema in schemas:
        compiled = bytewise.compile(JsonSchemaGrammar({"type": "string", **schema}, mode="best_effort"))
        assert compiled.validate('"2024-02-29"') is None
    assert compiled.validate('"00:00:00Z"') is not None


def test_formats_that_nearly_every_text_has_are_unknown() -> None:
    assert [wide(name) for name in ("regex", "uri-reference", "idn-hostname", "of our own")] == [None] * 4
    assert wide("ip-address") == wide("ipv4")


@pytest.mark.parametrize("name", ["iri", "iri-reference", "uri-reference"])
def test_a_reference_names_at_most_one_user_and_one_port(bytewise: GrammarCompiler, name: str) -> None:
    schema = {"type": "string", "format": name}
    valid = ["a://b@c:80/d:e@f//g?h#i", "a://b", "file:///etc/a", "a:", "a:b:c@d//e", "a:/b", "urn:a:b", "a:?b"]
    assert taken(bytewise, schema, valid) == valid
    assert taken(bytewise, schema, ["a://b::c", "a://b:c", "a://b@c@d", "a://b:1:2"]) == []
    relative = ["//a:1/b", "/a", "/a//b", "a/b:c", "?a", "#b", "a@b"] if name != "iri" else []
    assert taken(bytewise, schema, ["//a::b", "//a@b@c", "1:a", *relative]) == relative


def test_a_number_in_a_relative_pointer_has_no_digit_behind_a_zero(bytewise: GrammarCompiler) -> None:
    """`jsonschema` takes `10/a`, and refuses `100/a` and `108`."""
    schema = {"type": "string", "format": "relative-json-pointer"}
    assert taken(bytewise, schema, ["0", "12#", "10/a", "100/a", "108"]) == ["0", "12#", "10/a"]


def test_the_host_of_a_mail_address_is_one_that_readers_know(bytewise: GrammarCompiler) -> None:
    assert taken(
        bytewise, {"type": "string", "format": "idn-email"}, ["é@é.org", "a@ht粋", "a@\u05fd", "a@b\u0615"]
    ) == ["é@é.org", "a@ht粋"]


def test_a_template_has_no_length_that_some_reader_refuses(bytewise: GrammarCompiler) -> None:
    """RFC 6570 has lengths of four digits, and the reader that `jsonschema` asks takes three."""
    schema = {"type": "string", "format": "uri-template"}
    assert taken(bytewise, schema, ["{a:999}", "/{b*}", "{a:1000}"]) == ["{a:999}", "/{b*}"]


def test_an_expression_has_counts_from_more_than_one(bytewise: GrammarCompiler) -> None:
    schema = {"type": "string", "format": "regex"}
    texts = ["^[a-z]{2,3}$", "a{0,9}", "(b{4,12}){12,120}", "c{3,2}", "c{12,3}", "c{9,8}"]
    assert taken(bytewise, schema, texts) == texts[:3]


def test_the_pattern_of_ipv6_has_the_addresses_that_python_reads() -> None:
    rng = random.Random(0)
    pattern, valid = re.compile(in_patterns("ipv6") or ""), 0
    for _ in range(20_000):
        groups = rng.choices(["a", "00f", "FFff", "12345", ""], weights=[4, 2, 2, 1, 2], k=rng.randint(0, 9))
        text = (
            rng.choice(["", ":", "::"])
            + ":".join(groups)
            + rng.choice(["", "", "::", ":1.2.3.4", ":1.2.3.256", "::1.2.3.4"])
        )
        try:
            IPv6Address(text)
        except ValueError:
            assert pattern.fullmatch(text) is None, text
        else:
            valid += 1
            assert pattern.fullmatch(text), text
    assert valid > 500
