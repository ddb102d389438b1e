"""Messages of NATS clients that are too old for NATS clients.

NATS delivers a message at once or not at all: its requesters wait for seconds. Here a message may wait, in a group
queue, or for a node that is down. Invariant: what a NATS client published reaches no NATS client later than
``queue_groups.nats_wait`` after its publication. A group with an MQTT member at QoS 1 or 2 keeps it as long as any
other message.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import NATS_PREFIX

REASON: Final = "nats_wait"  # the reason in counters


def stale(message: Message, now: float, wait: float) -> bool:
    """Whether a NATS client published the message more than ``wait`` seconds ago."""
    return now - message.published_at > wait and message.publisher.startswith(NATS_PREFIX)
