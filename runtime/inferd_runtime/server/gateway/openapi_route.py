"""``/openapi.json``: what this server can be asked, for people's tools."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inferd_runtime.server.gateway.replies import JSON_TYPE
from inferd_runtime.server.openapi.document import document_bytes

PATH = "/openapi.json"


def document_route() -> Route:
    """Return the route. The document is made once: it is the same for everybody.

    It needs a token like all others: nothing in it is secret, but without one a request is answered in a few bytes.
    """
    document = document_bytes()

    async def answer(request: Request) -> Response:
        return Response(document, media_type=JSON_TYPE)

    return Route(PATH, answer)
