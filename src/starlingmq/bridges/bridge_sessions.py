"""The two sessions of a bridge: the CONNECT of each, and what the near one has. Pure, so tests share it."""

from __future__ import annotations

from typing import Final

from starlingmq.bridges.bridge_relay import NearSession
from starlingmq.client.options import NEVER_EXPIRES, V5, V311, ConnectOptions
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.links_section import LinkLane
from starlingmq.core.messages.link_marks import FAR_LINK, lane_suffix, name_of
from starlingmq.core.messages.outgoing import RELEASED
from starlingmq.core.publish.bridges import KNOWS_LINKS, SITE, session_of
from starlingmq.core.session.session import Session
from starlingmq.wire.frames import publish_frame
from starlingmq.wire.packets import Will
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, USER_PROPERTY, Properties

# With 3.1.1, which announces no Receive Maximum. AWS IoT accepts 100 unacknowledged messages at QoS 1, mosquitto any
# number; of messages at QoS 2 mosquitto accepts 20, and ends the connection beyond.
INFLIGHT_3: Final = 100
INFLIGHT_3_QOS2: Final = 20
OUT_MAX: Final = 65_535


def far_options(
    config: BridgeConfig,
    site: str,
    password: str | None,
    clean: bool,
    says_bridge: bool,
    max_packet: int,
    timeout: float,
) -> ConnectOptions:
    """Of the CONNECT to the other broker. ``site`` is that of this broker, ``says_bridge``: with mosquitto's bit."""
    version = V5 if config.version == "5.0" else V311
    client_id = config.client_id or f"{config.name}-{site}"
    if isinstance(config, LinkLane):
        client_id = f"{FAR_LINK}{client_id}{lane_suffix(config.number, config.lanes)}"
    properties: Properties = {USER_PROPERTY: [(SITE, site)]} if version == V5 else {}
    return ConnectOptions(
        client_id=client_id,
        version=version,
        clean_start=clean,
        keep_alive=config.keep_alive,
        connect_timeout=timeout,
        username=config.credentials.username,
        password=None if password is None else password.encode(),
        will=state_will(name_of(client_id)) if config.notifications == "both" else None,
        session_expiry=NEVER_EXPIRES if version == V5 else 0,
        max_packet_size=max_packet if version == V5 else 0,
        receive_maximum=OUT_MAX,
        properties=properties,
        bridge=version == V311 and says_bridge,
    )


def near_options(config: BridgeConfig, server: Properties) -> ConnectOptions:
    """Of the CONNECT to this broker, with the limits that the other one has announced in its CONNACK (``server``)."""
    site = site_in(server)  # only a StarlingMQ wants what the core adds for one
    announced = server.get(RECEIVE_MAXIMUM, OUT_MAX)
    room = announced if isinstance(announced, int) else OUT_MAX
    inflight = config.max_inflight or (room if config.version == "5.0" else _inflight_3(config))
    largest = server.get(MAXIMUM_PACKET_SIZE, 0)
    return ConnectOptions(
        client_id=session_of(config),
        clean_start=False,
        keep_alive=0,
        will=state_will(config.name) if config.notifications != "off" else None,
        session_expiry=NEVER_EXPIRES,
        receive_maximum=min(inflight, room),
        max_packet_size=largest if isinstance(largest, int) else 0,
        properties={USER_PROPERTY: [(SITE, site)]} if site else {},
    )


def _inflight_3(config: BridgeConfig) -> int:
    exact = any(topic.qos == 2 and topic.direction != "in" for topic in config.topics)
    return INFLIGHT_3_QOS2 if exact else INFLIGHT_3


def site_in(server: Properties) -> str:
    """The site that the other broker has named in its CONNACK; "" if none."""
    return _told(server, SITE)


def knows_links(server: Properties) -> bool:
    """Whether the other broker has said so in its CONNACK."""
    return _told(server, KNOWS_LINKS) != ""


def _told(server: Properties, name: str) -> str:
    pairs = server.get(USER_PROPERTY)
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] == name:
            return pair[1]
    return ""


def near_session(session: Session | None) -> NearSession:
    if session is None:
        return NearSession({}, [], set(), set())
    subscriptions = {
        filter.decode(): (each.qos, each.no_local, each.retain_as_published) for filter, each in session.subscriptions()
    }
    inbound = {} if session.inbound is None else session.inbound.entries
    window = {} if session.window is None else session.window.entries
    held = [packet_id for packet_id, entry in inbound.items() if entry.message is not None]
    released = {packet_id for packet_id, entry in window.items() if entry.stage == RELEASED}
    return NearSession(subscriptions, held, released, {*inbound, *window})


def state_will(name: str) -> Will:
    return Will(f"$SYS/broker/connection/{name}/state".encode(), b"0", qos=1, retain=True)


def state_frame(name: str, version: int, payload: bytes = b"1") -> bytes:
    return publish_frame(f"$SYS/broker/connection/{name}/state".encode(), payload, 0, True, False, 0, version, b"")
