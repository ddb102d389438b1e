"""What a CONNECT asks for and the server allows: properties of CONNACK, limits of the connection, the will."""

from __future__ import annotations

from typing import cast

from starlingmq.core.context import Context
from starlingmq.core.message import Message
from starlingmq.core.session.qos import MAX_PACKET_ID, WINDOW_MAX
from starlingmq.core.session.session import Client, Session, Will
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Connect
from starlingmq.wire.mqtt import Will as WillPacket
from starlingmq.wire.properties import Properties, encode_property_bytes


def number(properties: Properties, name: int, default: int) -> int:
    value = properties.get(name)
    return value if isinstance(value, int) else default


def agree(ctx: Context, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
    """Settle what both sides may do; ``agreed`` becomes the properties of CONNACK."""
    mqtt = ctx.mqtt
    limits = ctx.limits
    keep_alive = connect.keep_alive
    if client.version == 5:
        _agree_5(ctx, client, connect, session, agreed)
        imposed = mqtt.server_keep_alive
        bound = mqtt.max_keep_alive
        if imposed == 0 and bound != 0 and not 0 < keep_alive <= bound:
            imposed = bound
        if imposed != 0:
            keep_alive = imposed
            agreed[prop.SERVER_KEEP_ALIVE] = imposed
    else:
        session.expiry = 0 if connect.clean_start else mqtt.session_expiry_v3
        client.window_limit = mqtt.max_inflight or MAX_PACKET_ID
    client.keep_alive = keep_alive * 1.5  # [MQTT-3.1.2-22]
    client.plain = client.max_packet == 0 and client.alias_out_limit == 0 and session.moving is None
    client.window_limit = min(client.window_limit, WINDOW_MAX)
    if session.window is not None:
        session.window.limit = client.window_limit
    agreed[prop.MAXIMUM_PACKET_SIZE] = limits.max_packet_size


def _agree_5(ctx: Context, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
    mqtt = ctx.mqtt
    wishes = connect.properties
    asked = number(wishes, prop.SESSION_EXPIRY_INTERVAL, 0)
    session.expiry = min(asked, mqtt.max_session_expiry)
    if session.expiry != asked:
        agreed[prop.SESSION_EXPIRY_INTERVAL] = session.expiry
    client.window_limit = number(wishes, prop.RECEIVE_MAXIMUM, 65535)
    if mqtt.max_inflight != 0:
        client.window_limit = min(client.window_limit, mqtt.max_inflight)
    client.alias_limit = mqtt.topic_alias_max
    client.alias_out_limit = min(number(wishes, prop.TOPIC_ALIAS_MAXIMUM, 0), mqtt.topic_alias_max)
    if mqtt.topic_alias_max != 0:
        agreed[prop.TOPIC_ALIAS_MAXIMUM] = mqtt.topic_alias_max
    if mqtt.max_awaiting_rel != 0:
        agreed[prop.RECEIVE_MAXIMUM] = mqtt.max_awaiting_rel
    if mqtt.max_qos != 2:
        agreed[prop.MAXIMUM_QOS] = mqtt.max_qos
    if not mqtt.retain_available:
        agreed[prop.RETAIN_AVAILABLE] = 0
    if not mqtt.wildcard_subscription:
        agreed[prop.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
    if not mqtt.shared_subscription:
        agreed[prop.SHARED_SUBSCRIPTION_AVAILABLE] = 0
    if not mqtt.subscription_identifier:
        agreed[prop.SUBSCRIPTION_IDENTIFIER_AVAILABLE] = 0
    if number(wishes, prop.REQUEST_RESPONSE_INFORMATION, 0) == 1 and mqtt.response_information:
        agreed[prop.RESPONSE_INFORMATION] = mqtt.response_information


def will_of(ctx: Context, client: Client, packet: WillPacket | None) -> Will | None:
    if packet is None:
        return None
    properties = packet.properties.copy()
    delay = properties.pop(prop.WILL_DELAY_INTERVAL, 0)
    expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, -1)
    raw = encode_property_bytes(properties)
    message = Message(packet.topic, packet.payload, packet.qos, packet.retain, raw, 0.0, client.client_id, 0.0)
    identity = 0
    if ctx.cluster.wills is not None:
        identity = ctx.next_sequence()
    granted = client.rights is not None and client.rights.source is not None
    return Will(message, cast(int, delay), cast(int, expiry), client, identity, granted)
