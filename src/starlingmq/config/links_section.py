"""The settings of links to other sites of StarlingMQ: the section ``links`` of the tree."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, structs

from starlingmq.config.bridges_section import BridgeConfig, check_bridges, speaks_kafka, speaks_nats
from starlingmq.config.section_types import ConfigError

LANES_MAX: Final = 16


class LinkConfig(BridgeConfig, frozen=True):
    """A bridge whose other broker is a StarlingMQ, with settings that only that one understands."""

    filters: Annotated[
        Literal["learned", "fixed"],
        Meta(
            description="learned: of what the topics' filters match, only messages travel that the other side has "
            "subscribers for. fixed: all."
        ),
    ] = "learned"
    compression: Annotated[
        Literal["zstd", "none"],
        Meta(description="zstd: the connection is compressed, if both sides have the extra [zstd]."),
    ] = "zstd"
    lanes: Annotated[
        int,
        Meta(
            ge=1,
            le=LANES_MAX,
            description="Connections that its messages are divided over, by a hash of the topic; each is carried by a "
            "node of its own where there are so many.",
        ),
    ] = 1


class LinkLane(LinkConfig, frozen=True):
    """One of the connections of a link: ``number`` of ``lanes``, from 1. Its name is that of the link, or NAME.NUMBER
    if there are several."""

    number: int = 1


def check_links(links: tuple[LinkConfig, ...], bridges: tuple[BridgeConfig, ...]) -> None:
    """Raises ConfigError."""
    check_bridges(links, "links")
    names = {bridge.name for bridge in bridges}
    for index, link in enumerate(links):
        path = f"links[{index}]"
        for name in {lane.name for lane in lanes_of(link)} | {link.name}:
            if name in names:
                raise ConfigError(f"{path}.name: {name} is the name of another link or bridge; rename one of them")
            names.add(name)
        if speaks_nats(link) or speaks_kafka(link):
            raise ConfigError(f"{path}.servers: links speak MQTT; use bridges for NATS servers and Kafka")
        if link.follow.database:
            raise ConfigError(f"{path}.follow.database: links have no clients to follow; use bridges")
        if "/" in link.client_id:
            raise ConfigError(f"{path}.client_id: a slash is not allowed: the number of the lane follows one")
        if link.version != "5.0":
            raise ConfigError(f"{path}.version: links speak MQTT 5.0; leave it out, or use bridges")


def lanes_of(link: LinkConfig) -> list[LinkLane]:
    fields: dict[str, Any] = structs.asdict(link)
    if link.lanes == 1:
        return [LinkLane(**fields)]
    return [LinkLane(**fields | {"name": f"{link.name}.{at}", "number": at}) for at in range(1, link.lanes + 1)]
