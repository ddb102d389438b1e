"""Messages of NATS clients that are too old to be given to NATS clients.

NATS gives a message at once or not at all: its requesters wait for seconds. Here it may wait, in the line of a queue
group, or at a node that is down. The law: what a NATS client published reaches no NATS client later than
``queue_groups.nats_wait`` after it was published. A group with an MQTT member at QoS 1 or 2 keeps it as long as it
keeps everything.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.message import Message
from starlingmq.core.session.session import NATS_PREFIX

REASON: Final = "nats_wait"  # by which it is counted


def stale(message: Message, now: float, wait: float) -> bool:
    """Whether a NATS client published it more than ``wait`` seconds ago."""
    return now - message.published_at > wait and message.publisher.startswith(NATS_PREFIX)
