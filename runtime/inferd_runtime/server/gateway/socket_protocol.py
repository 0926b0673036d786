"""uvicorn's WebSocket protocol, with typed errors for refused handshakes; messages are bytes, of text messages as well."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from inferd.protocol import InvalidRequest, NotFound, cut
from inferd_runtime.server.gateway.replies import JSON_TYPE, error_reply

NOTHING = b""
RESPONSES_PATH = "/v1/responses"
"""The path whose messages are texts."""
MAX_REFUSAL = 200
"""Characters of a refusal's reason, which may repeat headers of the handshake."""


class TypedHandshake(ServerProtocol):
    """Refuses a handshake with a typed error."""

    def reject(self, status: StatusLike, text: str) -> Response:
        """Return the refusal. uvicorn gives ``status`` 403 for a path without a WebSocket route."""
        nowhere = NotFound(
            "there is no WebSocket at this path; scripts connect to the address that `inferd serve` prints, without /v1"
        )
        error = nowhere if status == HTTPStatus.FORBIDDEN else InvalidRequest(cut(text.strip(), MAX_REFUSAL))
        answer = error_reply(error)
        response = super().reject(answer.status_code, bytes(answer.body).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = JSON_TYPE
        return response


class BinarySocket(WebSocketsSansIOProtocol):
    """Hands on messages as bytes. uvicorn decodes text messages, and logs a traceback for each that is not UTF-8."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = TypedHandshake(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self.pieces = bytearray()
        """Fragments of the message that is being received."""

    async def send(self, message: Any) -> None:
        """Send what the application says, and keep two lines out of uvicorn's log: an error for each refused handshake, and the
        query of the handshake, where browsers, which cannot set headers, may have put their token.
        """
        if not self.handshake_complete:
            self.scope = {**self.scope, "query_string": NOTHING}
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        """Join the fragments of a message as they come: a list of small ones takes six times the bytes that are counted."""
        self.pieces += self.frames[0] + event.data
        self.frames = [NOTHING]
        if event.fin:
            self.frames, self.pieces = [bytes(self.pieces)], bytearray()
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; a text message where there is to be none as an empty binary one, which its reader refuses."""
        if self.curr_msg_data_type == "text":
            texts = self.frames if self.scope["path"] == RESPONSES_PATH else [NOTHING]
            self.curr_msg_data_type, self.frames = "bytes", texts
        super().send_receive_event_to_app()
