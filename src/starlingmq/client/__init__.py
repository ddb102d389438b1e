"""StarlingMQ's own MQTT client, for 3.1, 3.1.1 and 5.0.

``state`` is the client as pure state, ``client`` the asyncio shell around it; the commands and the tests use both. The
client shares only the codec with the broker, so that tests can check one against the other.
"""

from starlingmq.client.client import Client
from starlingmq.client.endpoint import Endpoint, Tls, parse_url
from starlingmq.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    PublishFailed,
    SubscribeFailed,
)
from starlingmq.client.events import Message
from starlingmq.client.options import ConnectOptions, Subscription
from starlingmq.client.state import ClientState
from starlingmq.wire.packets import Will

__all__ = [
    "Client",
    "ClientError",
    "ClientState",
    "ConnectFailed",
    "ConnectOptions",
    "ConnectRefused",
    "ConnectionLost",
    "Endpoint",
    "Message",
    "PublishFailed",
    "SubscribeFailed",
    "Subscription",
    "Tls",
    "Will",
    "parse_url",
]
