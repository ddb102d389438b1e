"""A connection to a broker over a WebSocket."""

from __future__ import annotations

import contextlib

from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from starlingmq.client.endpoint import Endpoint
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link, Owner


class WebLink(Link):
    """MQTT inside the binary messages of a WebSocket, subprotocol ``mqtt`` [MQTT-6.0.0-1] to [MQTT-6.0.0-4]."""

    def __init__(self, owner: Owner, endpoint: Endpoint) -> None:
        super().__init__(owner)
        self._endpoint = endpoint
        self._web = WSConnection(ConnectionType.CLIENT)

    def _opened(self) -> None:
        host = self._endpoint.host if ":" not in self._endpoint.host else f"[{self._endpoint.host}]"
        request = Request(host=f"{host}:{self._endpoint.port}", target=self._endpoint.path, subprotocols=["mqtt"])
        super()._send(self._web.send(request))

    def data_received(self, data: bytes) -> None:
        try:
            self._web.receive_data(data)
            for event in self._web.events():
                self._on_event(event)
        except RemoteProtocolError as error:
            self._refuse(f"not a WebSocket server: {error}")

    def _on_event(self, event: object) -> None:
        if isinstance(event, BytesMessage):
            self._received(bytes(event.data))
        elif isinstance(event, AcceptConnection):
            if event.subprotocol != "mqtt":
                self._refuse("the WebSocket server does not support the subprotocol mqtt")
            elif not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(event, RejectConnection):
            self._refuse(f"the server answered HTTP {event.status_code} at {self._endpoint.path}")
        elif isinstance(event, Ping):
            super()._send(self._web.send(event.response()))
        elif isinstance(event, CloseConnection):
            with contextlib.suppress(LocalProtocolError):  # it is the answer to this side's own
                super()._send(self._web.send(event.response()))
            super().close()
        elif isinstance(event, TextMessage):
            self._refuse("the server sent a text frame; MQTT needs binary frames")  # [MQTT-6.0.0-1]
        elif not isinstance(event, RejectData | Pong):
            self._refuse(f"unexpected {type(event).__name__}")

    def _refuse(self, why: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectFailed(why))
            self.ready.exception()
        self.abort()

    def _send(self, data: bytes) -> None:
        if not self.closed.done():
            super()._send(self._web.send(BytesMessage(data=data)))

    def end(self, seconds: float) -> None:
        self._send_close()
        super().end(seconds)

    def close(self) -> None:
        self._send_close()
        super().close()

    def _send_close(self) -> None:
        with contextlib.suppress(LocalProtocolError):  # closing already
            super()._send(self._web.send(CloseConnection(code=1000)))
