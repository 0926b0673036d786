import ipaddress

import pytest
from hypothesis import given, strategies as st

from inferd import Forbidden, InvalidRequest
from inferd_runtime.server.egress.addresses import refusal
from inferd_runtime.server.egress.origins import read_address, read_pattern
from inferd_runtime.server.egress.rules import read_rules
from inferd_runtime.server.tenancy.quotas import Role

DISGUISED = [
    "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://0177.0.0.1/", "http://127.1/",
    "http://127.0.1/", "http://0x7f.0.0.1/", "http://127.0.0.1./", "http://１２７.0.0.0x1/", "http://1.2.3.4.5/",
    "http://localhost/", "http://LOCALHOST/", "http://a.localhost/", "http://localhost./", "http://printer.local/",
    "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1/", "http://::1/", "http://[127.0.0.1]/",
]  # fmt: skip
MALFORMED = [
    "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/", "example.com", "http:example.com",
    "http:///path", "http://", "http://user@example.com/", "http://user:secret@example.com/", "http://a@b@example.com/",
    "http://example.com:0/", "http://example.com:65536/", "http://example.com:80:90/", "http://example.com:/", "http://:80/",
    "http://example.com:８０/", "http://example.com\\@evil.com/", "http://exa mple.com/", "http://example.com/\r\nX: y",
    "http://example.com/\t", "http://example.com\x00.evil.com/", "http://ex%61mple.com/", "http://-a.com/", "http://a..b/",
    "http://" + "a" * 64 + ".com/", "http://" + "a." * 130 + "com/", "http://example.com;evil.com/", "http://xn--a.\ud800/",
]  # fmt: skip


@pytest.mark.parametrize("url", DISGUISED + MALFORMED)
def test_what_could_be_read_in_two_ways_is_no_url(url: str) -> None:
    with pytest.raises(InvalidRequest):
        read_address(url)


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("https://API.Example.com/a?b=c#d", "https://api.example.com/a?b=c"),
        ("http://example.com:80", "http://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("https://bücher.example/ä?ö", "https://xn--bcher-kva.example/%C3%A4?%C3%B6"),
        ("http://[2606:4700:0::1]:8080/x", "http://[2606:4700::1]:8080/x"),
        ("http://ｅxample.com/", "http://example.com/"),
        ("https://example.com?x", "https://example.com/?x"),
        ("https://example.com/a%2Fb/../c", "https://example.com/a%2Fb/../c"),
    ],
)
def test_a_url_is_read_in_one_way(url: str, read: str) -> None:
    assert str(read_address(url)) == read


@given(st.text(max_size=40))
def test_no_text_is_read_as_something_that_is_read_in_another_way_again(rest: str) -> None:
    try:
        found = read_address("http://" + rest)
    except InvalidRequest:
        return
    assert read_address(str(found)) == found


REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2001:10::1", "2001:20::1", "2002:7f00:1::",
    "2002:808:808::", "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    "2620:4f:8000::1",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
)
def test_a_public_address_is_not(address: str) -> None:
    assert refusal(ipaddress.ip_address(address)) is None


@given(st.ip_addresses(v=4))
def test_no_address_that_python_calls_local_is_taken_for_public(address: ipaddress.IPv4Address) -> None:
    assert refusal(address) or address.is_global


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_comes_in_by_an_ipv6_one(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for form in (number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert refusal(ipaddress.IPv6Address(form))


def test_an_operator_allows_a_range_and_no_other() -> None:
    allowed = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    assert refusal(ipaddress.ip_address("127.0.0.1"), allowed[:1]) is None
    assert refusal(ipaddress.ip_address("10.0.0.1"), allowed[:1])
    for never in ("0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "::ffff:127.0.0.1", "fe80::1%eth0"):
        assert refusal(ipaddress.ip_address(never), allowed)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("api.example.com", "https://api.example.com", "http://api.example.com"),
        ("api.example.com", "https://API.example.com:443", "https://api.example.com:8443"),
        ("*.example.com", "https://a.b.example.com", "https://example.com"),
        ("*.example.com", "https://a.example.com", "https://evilexample.com"),
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080", "http://10.0.0.10:8080"),
        ("*", "https://anything.example", "http://anything.example"),
        ("https://*:8443", "https://x.example:8443", "https://x.example"),
    ],
)
def test_a_pattern_means_one_scheme_and_one_port(pattern: str, yes: str, no: str) -> None:
    assert read_pattern(pattern).matches(read_address(yes).origin)
    assert not read_pattern(pattern).matches(read_address(no).origin)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://a.example",
        "a.example/path",
        "*a.example",
        "*.127.0.0.1",
        "a.*.example",
        "://a.example",
        "a@b.example",
    ],
)
def test_what_names_no_origin_is_no_pattern(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_pattern(text)


def test_operator_and_manifest_have_to_agree() -> None:
    table = read_rules(["all,a.example", "tenant:ann,b.example,private=10.0.0.0/8", "admin,*"])
    ann, bob = table.of("ann", Role.USER), table.of("bob", Role.USER)
    a, b = read_address("https://a.example").origin, read_address("https://b.example").origin
    ann.check(a)
    ann.check(b, [read_pattern("b.example")])
    table.of("bob", Role.ADMIN).check(b)
    assert bob.private == ()
    for rules, origin, declared in ((bob, b, None), (ann, a, [read_pattern("b.example")]), (ann, a, [])):
        with pytest.raises(Forbidden):
            rules.check(origin, declared)
    with pytest.raises(Forbidden, match="--http-allow"):
        read_rules([]).of("ann", Role.ADMIN).check(a)


@pytest.mark.parametrize(
    "line", ["ann,a.example", "tenant:,a.example", "all", "all,private=10", "all,a.example,ftp://b"]
)
def test_a_line_that_says_nothing_clear_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest):
        read_rules([line])
