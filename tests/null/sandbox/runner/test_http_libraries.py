"""`requests` and `httpx` as programs have them, on a host that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
import requests

from inferd.protocol import Forbidden, InferdError, LimitExceeded, Unavailable
from inferd.protocol.http import BodyChunk, FetchBegun, ReadBody, ResponseHead, StartFetch, WriteBody
from inferd.transport import restore_transport, use_transport
from inferd_runtime.sandbox.runner.http_libraries import BlockingTransport, HttpLibraries

URL = "http://a.example/x"
COOKIES = ["a=1; Path=/; Expires=Wed, 09 Jun 2038 10:18:14 GMT", "b=2"]


class Web:
    """Answers every request with ``{"a": 1}`` in two pieces, or raises ``error``."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: InferdError | None = None

    def ask(self, request: Any) -> Any:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        if isinstance(request, ReadBody):
            return BodyChunk(b": 1}", last=True)
        headers = [["content-type", "application/json"], *(["set-cookie", cookie] for cookie in COOKIES)]
        head = ResponseHead(1, 200, URL, headers, b'{"a"')
        return FetchBegun(1) if not isinstance(request, StartFetch) and len(self.asked) == 1 else head


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    before = use_transport(BlockingTransport(web.ask))
    yield web
    restore_transport(before)


def adapted(web: Web, loaded: ModuleType) -> Any:
    """Return a library's module as a program gets it; the tests' own stays as it is."""
    module: Any = ModuleType(loaded.__name__)
    module.__dict__.update(vars(loaded))
    if hasattr(module, "HTTPAdapter"):
        module.HTTPAdapter = type("HTTPAdapter", (module.HTTPAdapter,), {})
    HttpLibraries(web.ask).adapt(module)
    return module


@pytest.fixture
def session(web: Web) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a program has no environment
    session.mount("http://", adapted(web, requests.adapters).HTTPAdapter())
    return session


def test_requests_fetches_and_keeps_cookies(web: Web, session: requests.Session) -> None:
    """Its import failed where it looks for certificates, and it sends over sockets, which a program has none of."""
    response = session.post(URL, json={"b": 2}, headers={"X-Mine": "1"}, timeout=(3, 5))
    assert (response.json(), response.reason, response.url) == ({"a": 1}, "OK", URL)
    assert session.cookies.get_dict() == {"a": "1", "b": "2"}
    sent = web.asked[0]
    assert (sent.method, sent.url, sent.body, sent.timeout_s, sent.redirects) == ("POST", URL, b'{"b": 2}', 5, 0)
    assert {field.name for field in sent.headers} == {"User-Agent", "Accept", "X-Mine", "Content-Type"}


def test_requests_streams_as_it_comes_and_sends_in_pieces(web: Web, session: requests.Session) -> None:
    response = session.post(URL, data=iter([b"x", b"y"]), stream=True)
    assert [type(one).__name__ for one in web.asked] == ["BeginFetch", *["WriteBody"] * 3, "AwaitHead"]
    assert [one.data for one in web.asked if isinstance(one, WriteBody)] == [b"x", b"y", b""]
    assert list(response.iter_content(100)) == [b'{"a"', b": 1}"]


@pytest.mark.parametrize("options", [{"verify": False}, {"cert": "a.pem"}, {"proxies": {"http": "http://b.example"}}])
def test_requests_is_refused_what_is_not_a_programs_to_choose(
    web: Web, session: requests.Session, options: dict[str, Any]
) -> None:
    with pytest.raises(NotImplementedError, match="operator's server makes the connections"):
        session.get(URL, **options)
    assert web.asked == []


def test_httpx_fetches_at_once_and_awaited(web: Web) -> None:
    module = adapted(web, httpx._transports.default)
    with httpx.Client(transport=module.HTTPTransport()) as client:
        response = client.put(URL, content=b"z", timeout=7)
    assert (response.json(), dict(response.cookies)) == ({"a": 1}, {"a": "1", "b": "2"})
    assert (web.asked[0].method, web.asked[0].body, web.asked[0].timeout_s) == ("PUT", b"z", 7)
    with pytest.raises(NotImplementedError):
        module.HTTPTransport(verify=False)


async def test_httpx_awaits_the_programs_own_transport(web: Web) -> None:
    module = adapted(web, httpx._transports.default)
    async with (
        httpx.AsyncClient(transport=module.AsyncHTTPTransport()) as client,
        client.stream("GET", URL) as response,
    ):
        assert [piece async for piece in response.aiter_raw()] == [b'{"a"', b": 1}"]


def test_errors_of_connections_and_time_are_the_librarys_and_others_ours(web: Web, session: requests.Session) -> None:
    module = adapted(web, httpx._transports.default)
    late = LimitExceeded("late", limit="timeout", value=1, raise_with="timeout=")
    kinds = (
        (Unavailable("nobody"), requests.ConnectionError, httpx.ConnectError),
        (late, requests.ReadTimeout, httpx.ReadTimeout),
        (
            LimitExceeded("16 are open", limit="open_fetches", value=16, raise_with="fewer"),
            LimitExceeded,
            LimitExceeded,
        ),
        (Forbidden("the manifest does not name it"), Forbidden, Forbidden),
    )
    for web.error, of_requests, of_httpx in kinds:
        with pytest.raises(of_requests, match=str(web.error)[:4]):
            session.get(URL)
        with httpx.Client(transport=module.HTTPTransport()) as client, pytest.raises(of_httpx):
            client.get(URL)
