"""Bridges of mosquitto. A connection is recognised as a bridge by bit 7 of the protocol level (``try_private``), which
is in no specification, or by a will on its state topic, which is all that a bridge of MQTT 5 shows.

A bridge publishes its state: retained ``1`` on its state topic after CONNACK, retained ``0`` as its will. The topic is
below ``$SYS/``, where clients otherwise may not publish. The broker shows this state as it comes, and accepts nothing
else there.
"""

from __future__ import annotations

from starlingmq.core.session.session import Client


def state_topic(client_id: str) -> bytes:
    """The state topic of the bridge with this client id, as mosquitto names it."""
    return b"$SYS/broker/connection/%b/state" % client_id.encode()


def tells_state(client: Client, topic: bytes, payload: bytes, qos: int) -> bool:
    """Whether this message is the state of ``client``, a bridge; bridges do not use ``qos`` 2 for it."""
    return client.bridge and qos != 2 and payload in (b"0", b"1") and topic == state_topic(client.client_id)
