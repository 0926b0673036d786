"""uvicorn's protocol of WebSockets with typed errors for handshakes that are none, and without what it makes of text."""

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
MAX_REFUSAL = 200
"""Characters that are told of what is wrong with a handshake: its headers are repeated."""


class TypedHandshake(ServerProtocol):
    """Refuses a handshake with an error in the one shape of errors."""

    def reject(self, status: StatusLike, text: str) -> Response:
        """Return the refusal. ``status`` 403 is what uvicorn makes of a path that no route for WebSockets has."""
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
    """A script's messages are binary. uvicorn decodes a text, and logs a traceback for each that is no UTF-8."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = TypedHandshake(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self.pieces = bytearray()
        """Of a message that is not complete."""

    async def send(self, message: Any) -> None:
        """Send what the application says. A refusal completes a handshake: uvicorn logs an error for it, as for one forgotten.
        Nor is a handshake's query logged: browsers, which can send no header, may have put their token there.
        """
        if not self.handshake_complete:
            self.scope = {**self.scope, "query_string": NOTHING}
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        """Join the pieces of a message as they come: small ones, kept apart, take six times the bytes that are counted."""
        self.pieces += self.frames[0] + event.data
        self.frames = [NOTHING]
        if event.fin:
            self.frames, self.pieces = [bytes(self.pieces)], bytearray()
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; a text message as an empty binary one, which its reader refuses."""
        if self.curr_msg_data_type == "text":
            self.curr_msg_data_type, self.frames = "bytes", [NOTHING]
        super().send_receive_event_to_app()
