"""What producers and brokers call the things that they say to each other in User Properties (see
core.session.producers)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

PRODUCER: Final = "starlingmq-producer"
EPOCH: Final = "starlingmq-epoch"
NEXT: Final = "starlingmq-next"
DIGEST: Final = "starlingmq-digest"
NODE: Final = "starlingmq-node"


def digest_of(digest: int, topic: bytes, payload: bytes) -> int:
    """The digest over some messages, from that over those before the last one."""
    return crc32(payload, crc32(topic, crc32(b"%d %d " % (len(topic), len(payload)), digest)))
