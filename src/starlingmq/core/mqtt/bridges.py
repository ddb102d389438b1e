"""Bridges of mosquitto: a connection is known as one by bit 7 of the protocol level (``try_private``), which is in no
specification, or by a will on its state topic, which is all that a bridge of MQTT 5 shows.

A bridge tells whether it is connected: retained ``1`` on its state topic after CONNACK, retained ``0`` as its will. The
topic is below ``$SYS/``, where no client publishes otherwise; there it is shown as it comes, and nothing else is taken.
"""

from __future__ import annotations

from starlingmq.core.session.session import Client


def state_topic(client_id: str) -> bytes:
    """Where the bridge with this client id tells its state, as mosquitto names it."""
    return b"$SYS/broker/connection/%b/state" % client_id.encode()


def tells_state(client: Client, topic: bytes, payload: bytes, qos: int) -> bool:
    """Whether this is the state of ``client``, a bridge; ``qos`` 2 is not used for it."""
    return client.bridge and qos != 2 and payload in (b"0", b"1") and topic == state_topic(client.client_id)
