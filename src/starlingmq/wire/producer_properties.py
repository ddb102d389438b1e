"""Names of the User Properties that producers and brokers exchange (see core.session.producers)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

PRODUCER: Final = "starlingmq-producer"
EPOCH: Final = "starlingmq-epoch"
NEXT: Final = "starlingmq-next"
DIGEST: Final = "starlingmq-digest"
NODE: Final = "starlingmq-node"


def digest_of(digest: int, topic: bytes, payload: bytes) -> int:
    """Extend the digest over earlier messages by one message."""
    return crc32(payload, crc32(topic, crc32(b"%d %d " % (len(topic), len(payload)), digest)))
