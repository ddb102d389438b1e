"""Negotiation at CONNECT: properties of CONNACK, limits of the connection, the will."""

from __future__ import annotations

from typing import cast

from starlingmq.core.context.context import Context
from starlingmq.core.messages.link_marks import FAR_LINK, LINK_ID_BYTES
from starlingmq.core.messages.message import Message
from starlingmq.core.publish.bridges import tells_state
from starlingmq.core.publish.producers import named_by
from starlingmq.core.router.router import Router
from starlingmq.core.session.qos import WINDOW_MAX, WINDOW_START
from starlingmq.core.session.session import (
    BRIDGE_LISTENER,
    BRIDGE_PREFIX,
    RESERVED,
    Client,
    Session,
    Will,
)
from starlingmq.core.topics.topics import of_the_broker, of_the_node
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Connect
from starlingmq.wire.mqtt import Will as WillPacket
from starlingmq.wire.properties import Properties, encode_property_bytes
from starlingmq.wire.reasons import ProtocolError, Reason


def number(properties: Properties, name: int, default: int) -> int:
    value = properties.get(name)
    return value if isinstance(value, int) else default


def check(ctx: Context, router: Router, client: Client, connect: Connect) -> None:
    """Raises ProtocolError for requests that no client may make here."""
    limits = ctx.limits
    if not connect.client_id:
        if connect.version == 3 or (connect.version == 4 and not connect.clean_start):
            # [MQTT-3.1.3-8]: 3.1.1 has an empty client id only with clean session, 3.1 not at all
            raise ProtocolError("the client id is empty", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        if not ctx.mqtt.empty_client_id:
            text = "the client id is empty, which mqtt.empty_client_id does not allow"
            raise ProtocolError(text, Reason.CLIENT_IDENTIFIER_NOT_VALID)  # [MQTT-3.1.3-8]
    elif client.listener == BRIDGE_LISTENER:
        client.bridge = True
    elif connect.client_id.startswith(RESERVED):
        raise ProtocolError("the client id is reserved for the broker", Reason.CLIENT_IDENTIFIER_NOT_VALID)
    elif connect.client_id.startswith(FAR_LINK):
        client.bridge = True
        _check_link_id(ctx, connect.client_id)
    elif len(connect.client_id.encode()) > limits.client_id_length:
        raise ProtocolError("the client id is too long", Reason.CLIENT_IDENTIFIER_NOT_VALID)
    elif ctx.mqtt.strict_client_id and not (
        len(connect.client_id) <= 23 and connect.client_id.isascii() and connect.client_id.isalnum()
    ):
        raise ProtocolError("the client id is not 1 to 23 letters and digits", Reason.CLIENT_IDENTIFIER_NOT_VALID)
    lasting = not connect.clean_start or number(connect.properties, prop.SESSION_EXPIRY_INTERVAL, 0) != 0
    if connect.version == 5 and named_by(connect.properties) is not None and lasting:
        raise ProtocolError("a producer must connect with clean start = 1 and session expiry interval 0")
    bound = ctx.mqtt.max_keep_alive
    if bound != 0 and connect.version != 5 and not 0 < connect.keep_alive <= bound:
        raise ProtocolError(f"the keep-alive is above the maximum of {bound} s", Reason.UNSPECIFIED_ERROR)
    will = connect.will
    if will is not None:
        if will.qos > ctx.mqtt.max_qos:
            raise ProtocolError(
                "the QoS of the will is above the server's maximum", Reason.QOS_NOT_SUPPORTED
            )  # [MQTT-3.2.2-12]
        if will.retain and not ctx.mqtt.retain_available:
            raise ProtocolError("retained wills are not available", Reason.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-13]
        router.check(will.topic)
        if of_the_broker(will.topic):
            raise ProtocolError("no client publishes to topics of streams and dead letters", Reason.TOPIC_NAME_INVALID)
        if of_the_node(will.topic):
            client.bridge = True  # as this will shows
            if not tells_state(client, will.topic, will.payload, will.qos):
                raise ProtocolError("the topic of the will is reserved for the broker", Reason.TOPIC_NAME_INVALID)


def _check_link_id(ctx: Context, client_id: str) -> None:
    """A link cannot choose a shorter id, and no other client must get around the settings by such an id."""
    strict = ctx.mqtt.strict_client_id
    bound = LINK_ID_BYTES if strict else max(ctx.limits.client_id_length, LINK_ID_BYTES)
    if len(client_id.encode()) > bound:
        raise ProtocolError("the client id is too long", Reason.CLIENT_IDENTIFIER_NOT_VALID)
    named = client_id.removeprefix(FAR_LINK)
    if strict and not (named.isascii() and all(each.isalnum() or each in "._-/" for each in named)):
        raise ProtocolError("the client id is not that of a link", Reason.CLIENT_IDENTIFIER_NOT_VALID)


def asks_for_storage(connect: Connect) -> bool:
    """Whether CONNACK promises something that has to be stored: a persistent session, or a will."""
    if connect.will is not None:
        return True
    if connect.version == 5 and named_by(connect.properties) is not None:
        return True  # the state of its publications that it is told may not be stored yet
    if connect.version == 5:
        return number(connect.properties, prop.SESSION_EXPIRY_INTERVAL, 0) != 0
    return not connect.clean_start


def session_expiry(ctx: Context, connect: Connect) -> int:
    """Seconds that the session lasts without a connection."""
    if connect.version == 5:
        asked = number(connect.properties, prop.SESSION_EXPIRY_INTERVAL, 0)
        return asked if connect.client_id.startswith(BRIDGE_PREFIX) else min(asked, ctx.mqtt.max_session_expiry)
    return 0 if connect.clean_start else ctx.mqtt.session_expiry_v3


def agree(ctx: Context, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
    """Settle the limits of both sides; ``agreed`` becomes the properties of CONNACK."""
    mqtt = ctx.mqtt
    limits = ctx.limits
    keep_alive = connect.keep_alive
    session.expiry = session_expiry(ctx, connect)
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
        client.window_grows = mqtt.max_inflight == 0
        client.window_limit = mqtt.max_inflight or WINDOW_START
    client.keep_alive = keep_alive * 1.5  # [MQTT-3.1.2-22]
    client.plain = client.max_packet == 0 and client.alias_out_limit == 0 and session.moving is None
    client.window_limit = min(client.window_limit, WINDOW_MAX)
    if session.window is not None:
        session.window.begin(client.window_limit, client.window_grows)
    agreed[prop.MAXIMUM_PACKET_SIZE] = limits.max_packet_size


def _agree_5(ctx: Context, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
    mqtt = ctx.mqtt
    wishes = connect.properties
    if session.expiry != number(wishes, prop.SESSION_EXPIRY_INTERVAL, 0):
        agreed[prop.SESSION_EXPIRY_INTERVAL] = session.expiry
    client.window_grows = mqtt.max_inflight == 0 and prop.RECEIVE_MAXIMUM not in wishes
    client.window_limit = WINDOW_START if client.window_grows else number(wishes, prop.RECEIVE_MAXIMUM, 65535)
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
    return Will(message, cast(int, delay), cast(int, expiry), client, identity, has_own_rules(client))


def has_own_rules(client: Client) -> bool:
    """Whether its login brought rules, which are not stored."""
    return client.rights is not None and client.rights.source is not None
