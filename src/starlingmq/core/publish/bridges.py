"""The state of bridges, as mosquitto shows it: of its own, and of this broker's (``starlingmq.bridges``).

A bridge of mosquitto is a client. Its connection is recognised by bit 7 of the protocol level (``try_private``), which
is in no specification, or by a will on its state topic, which is all that a bridge of MQTT 5 shows.

A bridge publishes its state: retained ``1`` on its state topic after CONNACK, retained ``0`` as its will. The topic is
below ``$SYS/``, where clients otherwise may not publish. The broker shows this state as it comes, and accepts nothing
else there.
"""

from __future__ import annotations

from typing import Final

from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.links_section import LinkLane
from starlingmq.config.settings import Config, carried
from starlingmq.core.messages.link_marks import NEAR_LINK, lane_suffix, name_of
from starlingmq.core.session.session import BRIDGE_PREFIX, Client
from starlingmq.wire.digests import blake2b
from starlingmq.wire.properties import USER_PROPERTY, Properties, decode_property_bytes

SITE_BYTES: Final = 4  # of the digest that names a site
MARK: Final = "starlingmq-sites"  # a User Property of messages: see starlingmq.bridges.site_mark
_MARK_KEY: Final = MARK.encode()
SITE: Final = "starlingmq-site"  # a User Property of CONNECT of a bridge and of its CONNACK: the sender's site
KNOWS_LINKS: Final = "starlingmq-links"  # a User Property of CONNACK for a link: earlier versions have bridges only


def state_topic(client_id: str) -> bytes:
    """The state topic of the bridge with this client id, as mosquitto names it."""
    return b"$SYS/broker/connection/%b/state" % client_id.encode()


def tells_state(client: Client, topic: bytes, payload: bytes, qos: int) -> bool:
    """Whether this message is the state of ``client``, a bridge; bridges do not use ``qos`` 2 for it."""
    if not client.bridge or qos == 2 or payload not in (b"0", b"1"):
        return False
    return topic == state_topic(name_of(client.client_id))


def has_been_here(site: str, properties: bytes) -> bool:
    """Whether a message that another broker's bridge publishes has been at ``site`` before: this broker's own bridge
    took it there, and the message is not to go round. Asked for each message with properties from a bridge."""
    return site != "" and _MARK_KEY in properties and site in sites_of(properties)


def sites_of(properties: bytes) -> list[str]:
    """The sites that a message with these encoded properties has been at."""
    if _MARK_KEY not in properties:
        return []
    found: list[str] = []
    pairs = decode_property_bytes(properties).get(USER_PROPERTY)
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] == MARK:
            found += pair[1].split()
    return found


def tell_site(site: str, properties: Properties, agreed: Properties, link: bool) -> bool:
    """If this CONNECT is one of another StarlingMQ's bridge, name the own ``site`` in CONNACK: what has been here is
    not sent here again. Returns whether it is. ``link``: and say that links are known here."""
    pairs = properties.get(USER_PROPERTY)
    if isinstance(pairs, list) and any(isinstance(pair, tuple) and pair[0] == SITE for pair in pairs):
        agreed.setdefault(USER_PROPERTY, [(SITE, site), (KNOWS_LINKS, "1")] if link else [(SITE, site)])
        return True
    return False


def site_of(config: Config) -> str:
    """The name of a broker or cluster for bridges: eight characters."""
    name = f"cluster {config.cluster.name}" if config.cluster.enabled else f"node {config.node.name}"
    return blake2b(name.encode(), digest_size=SITE_BYTES).hexdigest()


def session_of(bridge: BridgeConfig) -> str:
    """The client id of its session at this broker."""
    if isinstance(bridge, LinkLane):
        return NEAR_LINK + bridge.name + lane_suffix(bridge.number, bridge.lanes)
    return BRIDGE_PREFIX + bridge.name


def holding_of(config: Config) -> set[str]:
    """The client ids of those that hold publishers back."""
    return {session_of(each) for each in carried(config) if each.hold_publishers}


def bounds_of(config: Config) -> dict[str, tuple[int, int]]:
    """By client id of each bridge and lane of a link: messages and bytes that may wait."""
    every = carried(config)
    return {session_of(each): (each.max_mqueue_len, each.queue_bytes) for each in every}
