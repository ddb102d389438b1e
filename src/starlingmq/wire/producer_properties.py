"""Names of the User Properties that producers and brokers exchange (see core.publish.producers)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

PRODUCER: Final = "starlingmq-producer"
EPOCH: Final = "starlingmq-epoch"
NEXT: Final = "starlingmq-next"
DIGEST: Final = "starlingmq-digest"
NODE: Final = "starlingmq-node"
ALSO: Final = "starlingmq-also"
ALSO_MAX: Final = 4  # properties of this name in a CONNECT


def digest_of(digest: int, topic: bytes, payload: bytes, retain: bool) -> int:
    """Extend the digest over earlier messages by one message."""
    head = b"%d %d retain " if retain else b"%d %d "
    return crc32(payload, crc32(topic, crc32(head % (len(topic), len(payload)), digest)))
