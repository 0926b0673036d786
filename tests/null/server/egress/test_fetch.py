"""One fetch against servers that do what they should not."""

from __future__ import annotations

import base64
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme
from hypothesis import given, strategies as st
from web_servers import Answer, Connection, web_server

from inferd import Forbidden, InferdError, InternalError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd.protocol.http import AwaitHead, CloseFetch, ReadBody, ResponseHead, WriteBody
from inferd_runtime.server.egress.fetcher_process import FetchTable, trusted_context
from inferd_runtime.server.egress.messages import FetchOrder, HeaderLine
from inferd_runtime.server.egress.redaction import Redactor
from inferd_runtime.server.egress.resolver import Resolver

SECRET = "s3cr3t-0123456789"


@dataclass
class Names:
    """A name server whose answers change."""

    answers: dict[str, list[list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def look_up(self, name: str) -> list[str]:
        self.asked.append(name)
        answers = self.answers.get(name, [["127.0.0.1"]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Fetching:
    """A fetcher, and orders for it."""

    table: FetchTable
    names: Names
    count: int = 0

    def order(self, url: str, **changes: Any) -> FetchOrder:
        self.count += 1
        plain = FetchOrder(
            self.count, "ann", "GET", url, [], b"", False, 10.0, 5, ["*", "http://*"], None, ["127.0.0.0/8"], 1 << 20
        )  # fmt: skip
        origin = url.split("/")[2]
        return replace_order(plain, **{"allowed": [f"http://{origin}", f"https://{origin}"], **changes})

    async def head(self, url: str, **changes: Any) -> ResponseHead:
        order = self.order(url, **changes)
        await self.table.open(order)
        return await self.table.head(AwaitHead(order.fetch))

    async def body(self, head: ResponseHead) -> bytes:
        data, last = head.chunk, head.last
        while not last:
            piece = await self.table.read(ReadBody(head.fetch))
            data, last = data + piece.data, piece.last
        return data

    async def get(self, url: str, **changes: Any) -> bytes:
        return await self.body(await self.head(url, **changes))


def replace_order(order: FetchOrder, **changes: Any) -> FetchOrder:
    import msgspec

    return msgspec.structs.replace(order, **changes)


@asynccontextmanager
async def fetching(ca: str = "") -> AsyncIterator[Fetching]:
    names = Names()
    async with anyio.create_task_group() as tasks:
        yield Fetching(FetchTable(tasks, trusted_context(ca), Resolver(names.look_up)), names)
        tasks.cancel_scope.cancel()


def always(body: bytes, **headers: str) -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.answer(body, **headers)

    return answer


def redirect(location: str, status: str = "302 Found") -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.answer(b"", status, Location=location)

    return answer


async def repeat(connection: Connection) -> None:
    """Answer with the request's own head."""
    await connection.answer(connection.head.encode())


async def test_a_body_comes_as_it_was_sent() -> None:
    async with fetching() as fetch, web_server(always(b"hello", X_Thing="1")) as web:
        head = await fetch.head(web.url("/a?b"))
        assert (head.status, head.url, await fetch.body(head)) == (200, web.url("/a?b"), b"hello")
        assert ["x-thing", "1"] in head.headers
        assert web.seen[0].startswith("GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_the_name_is_asked_for_and_its_address_connected_to() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.example.com").configure_cert(context)
    pem = authority.cert_pem.bytes().decode()
    async with fetching(pem) as fetch, web_server(always(b"tls"), context) as web:
        assert await fetch.get(web.url(host="api.example.com")) == b"tls"
        assert web.seen[0].split("\r\n")[1] == f"Host: api.example.com:{web.port}"
        with pytest.raises(Unavailable, match="certificate"):
            await fetch.get(web.url(host="other.example.com"))
    async with fetching() as fetch, web_server(always(b"tls"), context) as web:
        with pytest.raises(Unavailable, match="certificate"):
            await fetch.get(web.url(host="api.example.com"))


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["127.0.0.1", "169.254.169.254"], ["::1"], ["::ffff:127.0.0.1"]])
async def test_a_name_with_a_private_address_is_not_connected_to(addresses: list[str]) -> None:
    async with fetching() as fetch, web_server(always(b"inside")) as web:
        fetch.names.answers["api.example.com"] = [addresses]
        with pytest.raises(Forbidden, match="may not connect") as refused:
            await fetch.get(web.url(host="api.example.com"))
        assert ("private=RANGE" in str(refused.value)) == (addresses != ["::ffff:127.0.0.1"]), (
            "what allows it, if anything does"
        )
        assert not web.seen


async def test_a_name_that_changes_after_it_was_checked_is_not_asked_again() -> None:
    async with fetching() as fetch, web_server(always(b"inside")) as web:
        fetch.names.answers["api.example.com"] = [["127.0.0.1"], ["10.0.0.1"]]
        assert await fetch.get(web.url(host="api.example.com")) == b"inside"
        assert fetch.names.asked == ["api.example.com"]
        with pytest.raises(Forbidden):  # and is asked and checked for each request
            await fetch.get(web.url(host="api.example.com"))


async def test_without_leave_nothing_of_this_machine_is_reached() -> None:
    async with fetching() as fetch, web_server(always(b"inside")) as web:
        for host in ("127.0.0.1", "api.example.com"):
            with pytest.raises(Forbidden):
                await fetch.get(web.url(host=host), private=[])
        assert not web.seen


async def test_a_redirect_is_held_against_the_lists_again() -> None:
    async with fetching() as fetch, web_server(always(b"inside")) as inside:
        for target in (inside.url(), "http://10.0.0.1/", "http://[::1]/", "http://0x7f.1/", "file:///etc/passwd"):
            async with web_server(redirect(target)) as web:
                with pytest.raises((Forbidden, InvalidRequest)):
                    await fetch.get(web.url())
        async with web_server(redirect(inside.url())) as web:
            both = [web.url("").rstrip("/"), inside.url("").rstrip("/")]
            assert await fetch.get(web.url(), allowed=both) == b"inside"
            with pytest.raises(Forbidden, match="manifest"):
                await fetch.get(web.url(), allowed=both, declared=both[:1])
        async with web_server(redirect("http://evil.example:80/")) as web:
            fetch.names.answers["evil.example"] = [["192.168.0.1"]]
            with pytest.raises(Forbidden, match="may not connect"):
                await fetch.get(web.url(), allowed=[web.url("").rstrip("/"), "http://*"])
        assert len(inside.seen) == 1


async def test_redirects_without_end_end() -> None:
    async with fetching() as fetch, web_server(redirect("/again")) as web:
        with pytest.raises(LimitExceeded) as caught:
            await fetch.get(web.url(), redirects=3)
        assert caught.value.detail["limit"] == "redirects"
        assert len(web.seen) == 4
        assert (await fetch.head(web.url(), redirects=0)).status == 302


@pytest.mark.parametrize(
    ("status", "method"), [("303 See Other", "GET"), ("302 Found", "GET"), ("307 Temporary", "POST")]
)
async def test_a_redirect_changes_the_method_as_browsers_do(status: str, method: str) -> None:
    async def answer(connection: Connection) -> None:
        if connection.path == "/first":
            await connection.answer(b"", status, Location="/second")
        else:
            await repeat(connection)

    async with fetching() as fetch, web_server(answer) as web:
        headers = [HeaderLine("Content-Type", "text/plain")]
        echoed = await fetch.get(web.url("/first"), method="POST", body=b"abc", headers=headers)
        assert echoed.startswith(f"{method} /second".encode())
        assert (b"content-type" in echoed.lower()) == (method == "POST")


def with_secret(**more: Any) -> dict[str, Any]:
    line = HeaderLine("Authorization", f"Bearer {SECRET}", True, "Bearer ")
    return {"headers": [line, HeaderLine("X-Api-Key", "mine"), HeaderLine("X-Plain", "yes")], **more}


async def test_a_secret_goes_to_its_server_and_does_not_come_back() -> None:
    async with fetching() as fetch, web_server(repeat) as web:
        echoed = (await fetch.get(web.url(), **with_secret())).decode()
        assert f"Authorization: Bearer {SECRET}" in web.seen[0]
        assert SECRET not in echoed
        assert f"Bearer {'*' * len(SECRET)}" in echoed


@pytest.mark.parametrize("size", [1, 5, 16, 17, 18])
async def test_a_secret_in_pieces_does_not_come_back(size: int) -> None:
    text = f"<{SECRET}{SECRET[:9]}{SECRET}>".encode()

    async def answer(connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 200 OK\r\nX-Echo: " + SECRET.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")

    async with fetching() as fetch, web_server(answer) as web:
        head = await fetch.head(web.url(), **with_secret())
        assert ["x-echo", "*" * len(SECRET)] in head.headers
        body = await fetch.body(head)
        assert len(body) == len(text)
        assert SECRET.encode() not in body


async def test_a_secret_in_an_encoding_that_nobody_asked_for_is_refused() -> None:
    async with fetching() as fetch, web_server(always(b"brotli", Content_Encoding="br")) as web:
        with pytest.raises(Unavailable, match="encoding"):
            await fetch.get(web.url(), **with_secret())


@given(st.lists(st.text("s3cr\n-0*", max_size=30), min_size=1, max_size=6))
def test_where_pieces_end_tells_nothing_of_a_secret(texts: list[str]) -> None:
    redactor, other = Redactor([SECRET]), Redactor(["z" * len(SECRET)])
    for text in texts:
        assert len(redactor.feed(text.encode())) == len(other.feed(text.encode()))
    assert len(redactor.end()) == len(other.end())


@given(st.text("ab\n", max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_no_piece_of_a_secret_passes(around: str, cuts: list[int]) -> None:
    secret = "abababab"
    data, redactor, out = f"{around}{secret}{around}".encode(), Redactor([secret]), b""
    for number in range(len(data)):
        size = cuts[number % len(cuts)]
        out += redactor.feed(data[:size])
        data = data[size:]
    out += redactor.end()
    assert len(out) == 2 * len(around.encode()) + len(secret)
    assert secret.encode() not in out


@pytest.mark.parametrize(
    "written",
    [
        r"sk\/a+b&c<d'e=f-9", r"sk/a\u002Bb\u0026c\u003Cd\u0027e=f-9", r"sk/a+b\u0026c\u003cd'e=f-9",
        "sk%2fa%2bb%26c%3cd%27e%3df-9", "sk%2Fa%2Bb%26c%3Cd'e%3Df-9", "sk/a+b&amp;c&lt;d&#x27;e=f-9",
        "sk/a+b&amp;c&lt;d&#039;e=f-9", base64.urlsafe_b64encode(b"sk/a+b&c<d'e=f-9").decode().rstrip("="),
        "sk/a+b&c<d'e=f-9".encode("utf-16-be").decode(),
    ],
)  # fmt: skip
def test_a_secret_in_the_escapes_of_usual_servers_does_not_come_back(written: str) -> None:
    redactor = Redactor(["sk/a+b&c<d'e=f-9"])
    assert redactor.contains(f"/?{written}")
    assert redactor.feed(f"<{written}".encode()) + redactor.end() == b"<" + b"*" * len(written)


def test_a_line_comes_at_once() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"data: x\n\ndata: y") == b"data: x\n\n"


async def test_a_secret_stays_at_its_origin() -> None:
    async with fetching() as fetch, web_server(repeat) as other, web_server(redirect(other.url())) as web:
        both = [web.url("").rstrip("/"), other.url("").rstrip("/")]
        await fetch.get(web.url(), **with_secret(allowed=both))
        assert SECRET in web.seen[0]
        assert "authorization" not in other.seen[0].lower()
        assert "x-api-key" not in other.seen[0].lower()
        assert "X-Plain: yes" in other.seen[0]
    async with fetching() as fetch, web_server(redirect(f"/?stolen={SECRET}")) as web:
        with pytest.raises(Forbidden) as caught:
            await fetch.get(web.url(), **with_secret())
        assert SECRET not in str(caught.value.to_wire())


async def test_a_decompression_bomb_ends_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    for body, encoding in (
        (bomb, "gzip"),
        (zlib.compress(bytes(64 << 20)), "deflate"),
        (gzip.compress(b"") * 5000, "gzip"),
    ):
        async with fetching() as fetch, web_server(always(body, Content_Encoding=encoding)) as web:
            with pytest.raises((LimitExceeded, Unavailable)):
                await fetch.get(web.url())


async def test_compressed_bodies_are_read_or_refused() -> None:
    text = b"a text " * 5000
    raw = zlib.compressobj(wbits=-15)
    for body, encoding in (
        (gzip.compress(text), "gzip"), (gzip.compress(text[:70]) + gzip.compress(text[70:]), "x-gzip"),
        (zlib.compress(text), "deflate"), (raw.compress(text) + raw.flush(), "deflate"), (text, "identity"),
    ):  # fmt: skip
        async with fetching() as fetch, web_server(always(body, Content_Encoding=encoding)) as web:
            assert await fetch.get(web.url()) == text
    for body in (gzip.compress(text)[:-9], b"no gzip at all", gzip.compress(text) + b"rest"):
        async with fetching() as fetch, web_server(always(body, Content_Encoding="gzip")) as web:
            with pytest.raises(Unavailable):
                await fetch.get(web.url())
    async with fetching() as fetch, web_server(always(b"brotli", Content_Encoding="br")) as web:
        head = await fetch.head(web.url())
        assert ["content-encoding", "br"] in head.headers
        assert await fetch.body(head) == b"brotli"


def forever(start: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.send(start)
        while True:
            await connection.send(piece)
            await anyio.sleep(pause)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "body": forever(OK + b"\r\n", bytes(65536)),
    "chunks": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "chunk extensions": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 65536),
    "header": forever(OK + b"X: ", b"x" * 65536),
    "headers": forever(OK, b"X: y\r\n"),
    "interim responses": forever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "status line": forever(b"HTTP/1.1 200 ", b"O" * 65536),
    "slow body": forever(OK + b"Content-Length: 1000\r\n\r\n", b"x", 0.02),
    "slow header": forever(OK, b"x", 0.02),
    "silence": forever(b"", b"", 0.02),
    "trailers": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_server_without_end_is_left(what: str) -> None:
    async with fetching() as fetch, web_server(ENDLESS[what]) as web:
        with anyio.fail_after(5), pytest.raises((LimitExceeded, Unavailable)):
            await fetch.get(web.url(), timeout_s=0.4)


async def test_chunks_that_mean_nothing_leave_other_fetches_their_turns() -> None:
    """A byte each, of empty compressed blocks: a read of 64 KB held up everybody's fetches for 0.5 s."""
    squeezed = gzip.compress(b"hello")
    empty = squeezed[:10] + b"\0\0\0\xff\xff" * 1000 + squeezed[10:]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in empty) + b"0\r\n\r\n"
    turns = 0

    async def answer(connection: Connection) -> None:
        await connection.send(OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with fetching() as fetch, web_server(answer) as web, anyio.create_task_group() as tasks:
        tasks.start_soon(neighbour)
        assert await fetch.get(web.url()) == b"hello"
        tasks.cancel_scope.cancel()
    assert turns > len(empty) / 2


def raw(data: bytes) -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.send(data)

    return answer


INTERIM = b"HTTP/1.1 103 \r\nLink: <a>\r\n\r\n"


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
async def test_a_flood_of_interim_responses_is_refused_before_it_is_read(end: bytes) -> None:
    """64 KB of them held up everybody's fetches for 0.05 s, and 64 such answers at once for as much each."""
    async with fetching() as fetch, web_server(raw(INTERIM.replace(b"\r\n", end) * 17 + OK + b"\r\n")) as web:
        with pytest.raises(LimitExceeded) as caught:
            await fetch.get(web.url())
        assert caught.value.detail["limit"] == "http_interim"


async def test_a_few_interim_responses_are_passed_over_and_no_blank_line_of_a_body_is_one() -> None:
    body = b"\r\n\r\n" * 100
    async with fetching() as fetch, web_server(raw(INTERIM * 16 + OK + b"Content-Length: 400\r\n\r\n" + body)) as web:
        assert await fetch.get(web.url()) == body


async def test_many_headers_are_refused() -> None:
    headers = b"".join(b"X-%d: y\r\n" % number for number in range(1000))

    async def answer(connection: Connection) -> None:
        await connection.send(OK + headers + b"Content-Length: 0\r\n\r\n")

    async with fetching() as fetch, web_server(answer) as web:
        with pytest.raises(LimitExceeded) as caught:
            await fetch.get(web.url())
        assert caught.value.detail["limit"] == "http_headers"


BROKEN = [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x16\x03\x01\x00", OK + b"Content-Length: 10\r\n\r\nabc",
          OK + b"Content-Length: -1\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", OK + b"A b: c\r\n\r\n",
          OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"]  # fmt: skip


@pytest.mark.parametrize("data", BROKEN)
async def test_what_is_no_http_is_a_typed_error(data: bytes) -> None:
    async def answer(connection: Connection) -> None:
        await connection.send(data)

    async with fetching() as fetch, web_server(answer) as web:
        with pytest.raises(Unavailable):
            await fetch.get(web.url())


async def test_a_server_is_read_no_faster_than_its_reader() -> None:
    sent = 0

    async def answer(connection: Connection) -> None:
        nonlocal sent
        await connection.send(OK + b"\r\n")
        while True:
            await connection.send(bytes(65536))
            sent += 65536

    async with fetching() as fetch, web_server(answer) as web:
        head = await fetch.head(web.url(), most_bytes=1 << 30)
        before = -1
        while before != sent:  # until the server cannot send more
            before = sent
            await anyio.sleep(0.1)
        assert sent < 64 << 20
        await fetch.table.close(CloseFetch(head.fetch))
        with pytest.raises(NotFound):
            await fetch.table.read(ReadBody(head.fetch))


async def test_a_body_in_pieces_is_sent_as_it_comes() -> None:
    got = bytearray()

    async def answer(connection: Connection) -> None:
        while not got.endswith(b"0\r\n\r\n"):
            got.extend(await connection.reader.read(65536))
        await connection.answer(b"%d" % len(got))

    async with fetching() as fetch, web_server(answer) as web:
        order = fetch.order(web.url(), method="POST", streams=True)
        await fetch.table.open(order)
        for piece in (b"one", b"two"):
            await fetch.table.write(WriteBody(order.fetch, piece))
        await fetch.table.write(WriteBody(order.fetch, b"", last=True))
        head = await fetch.table.head(AwaitHead(order.fetch))
        assert await fetch.body(head) == b"%d" % len(got)
        assert bytes(got) == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        with pytest.raises(InferdError):
            await fetch.table.write(WriteBody(order.fetch, b"more"))


async def test_a_lookup_that_hangs_costs_its_place_and_nobody_elses_time() -> None:
    import threading

    free = threading.Event()

    def hang(name: str) -> list[str]:
        free.wait(10)
        return ["127.0.0.1"]

    try:
        async with anyio.create_task_group() as tasks:
            fetch = Fetching(FetchTable(tasks, trusted_context(""), Resolver(hang)), Names())
            for _ in range(40):
                await fetch.table.open(fetch.order("http://a.example:80/", timeout_s=0.1))
            for number in range(1, 41):
                with pytest.raises(LimitExceeded):
                    await fetch.table.head(AwaitHead(number))
            other = fetch.order("http://b.example:80/", timeout_s=0.1, tenant="bob")
            await fetch.table.open(other)
            with pytest.raises(LimitExceeded) as caught:
                await fetch.table.head(AwaitHead(other.fetch))
            assert caught.value.detail["limit"] == "timeout"  # and not a lookup's place
            tasks.cancel_scope.cancel()
    finally:
        free.set()


async def test_a_request_that_is_given_up_ends() -> None:
    async with fetching() as fetch, web_server(ENDLESS["silence"]) as web:
        order = fetch.order(web.url())
        await fetch.table.open(order)
        async with anyio.create_task_group() as tasks:
            outcome: list[str] = []

            async def wait() -> None:
                try:
                    await fetch.table.head(AwaitHead(order.fetch))
                except InferdError as error:
                    outcome.append(error.code)

            tasks.start_soon(wait)
            await web.asked.wait()
            await fetch.table.close(CloseFetch(order.fetch))
        assert outcome == ["cancelled"]


async def test_a_bug_costs_its_own_fetch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("inferd_runtime.server.egress.fetch.next_hop", fails)
    async with fetching() as fetch, web_server(redirect("/again")) as broken, web_server(always(b"well")) as other:
        with pytest.raises(InternalError):
            await fetch.get(broken.url())
        assert await fetch.get(other.url()) == b"well"
