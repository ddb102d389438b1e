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
            description="How the member that gets a message is selected: at random, in turn, always the same "
            "member, by a hash of the topic or of the publisher, the member with the fewest "
            "unacknowledged messages, or a member on the node where the message was published."
        ),
    ] = "random"
    strategies: Annotated[dict[str, Strategy], Meta(description="Strategies of individual groups, by group name.")] = (
        field(default_factory=dict)
    )
    storage: Annotated[
        Literal["journal", "memory"],
        Meta(
            description="Where messages of groups wait: in the journal (as storage.engine and "
            "storage.journal select), or in memory only."
        ),
    ] = "journal"
    max_waiting: Annotated[
        Count,
        Meta(description="Messages queued for a group on one node before the oldest is dropped; 0 sets no limit."),
    ] = 1_000_000
    max_waiting_bytes: Annotated[
        Size,
        Meta(description="Bytes queued for a group on one node before the oldest message is dropped; 0 sets no limit."),
    ] = 1024 * 1024 * 1024
    retention: Annotated[
        Duration,
        Meta(description="How long a message waits for a member of its group before it is dropped; 0 sets no limit."),
    ] = 0.0
    nats_wait: Annotated[
        Duration,
        Meta(
            description="How long a message of a NATS client waits for NATS clients, in a queue group or on "
            "a node that is down, before it is dropped; 0 sets no limit. A group with an MQTT "
            "member at QoS 1 or 2 keeps such messages longer."
        ),
    ] = 5.0
    grace: Annotated[
        Duration,
        Meta(
            description="How long a group and its queued messages are kept after its last member lost its "
            "connection; 0 ends the group at once."
        ),
    ] = 30.0
    poll_interval: Annotated[
        float,
        Meta(
            ge=0.02,
            le=0.05,
            extra={"unit": "duration"},
            description="How long the primary of a group pauses after a pull that returned nothing, 20ms to "
            "50ms; one second if other nodes notify it.",
        ),
    ] = 0.03
    notify: Annotated[
        bool, Meta(description="Whether nodes notify the primary of a group at once when a message is queued for it.")
    ] = True
