"""Settings of queue groups: the section ``queue_groups`` of the tree."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from starlingmq.config.section_types import Count, Duration, Section, Size

Strategy = Literal["random", "round_robin", "sticky", "hash_topic", "hash_client", "least_inflight", "local_first"]


class QueueGroupsConfig(Section, frozen=True):
    strategy: Annotated[
        Strategy,
        Meta(
            description="Who of a group gets a message: anyone at random, one after the other, always the same, by "
            "topic, by publisher, who has least to acknowledge, or a member at the node where it came in."
        ),
    ] = "random"
    strategies: Annotated[
        dict[str, Strategy], Meta(description="The same for groups of one name: a name, and its strategy.")
    ] = field(default_factory=dict)
    storage: Annotated[
        Literal["journal", "memory"],
        Meta(
            description="Where messages of groups wait: in the journal, as storage.engine and storage.journal say, "
            "or in memory though there is one."
        ),
    ] = "journal"
    max_waiting: Annotated[
        Count,
        Meta(description="Messages that wait for a group at one node before the oldest is dropped; 0 sets no limit."),
    ] = 1_000_000
    max_waiting_bytes: Annotated[
        Size, Meta(description="Bytes that wait for a group at one node before the oldest is dropped; 0 sets no limit.")
    ] = 1024 * 1024 * 1024
    retention: Annotated[
        Duration,
        Meta(description="How long a message waits that no member takes before it is dropped; 0 as long as it takes."),
    ] = 0.0
    nats_wait: Annotated[
        Duration,
        Meta(
            description="How long a message of a NATS client waits for NATS clients, in the line of a queue group or "
            "at a node that is down, before it is dropped; 0 as long as it takes. A group with an MQTT member at QoS 1 "
            "or 2 keeps it."
        ),
    ] = 5.0
    grace: Annotated[
        Duration,
        Meta(
            description="How long a group stays, and messages wait for it, after its last member was lost with its "
            "connection; 0 not at all."
        ),
    ] = 30.0
    poll_interval: Annotated[
        float,
        Meta(
            ge=0.02,
            le=0.05,
            extra={"unit": "duration"},
            description="How long the primary of a group rests when it found nothing to pull, 20ms to 50ms; a second "
            "while others tell it.",
        ),
    ] = 0.03
    notify: Annotated[
        bool, Meta(description="Whether nodes tell the primary of a group at once that something waits there.")
    ] = True
