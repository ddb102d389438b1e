"""Which messages of another stream a stream keeps, as the core uses it."""

from __future__ import annotations

from starlingmq.core.streams.subject_transforms import SubjectTransform


class SourceSettings:
    name: str  # of the origin
    index: bytes  # nats-server's name of a source: that of the stream, its filters and destinations, by blanks
    mirror: bool
    filters: list[bytes]  # topic filters; none: everything
    transforms: list[SubjectTransform]
    start_seq: int
    start_time: float

    def __init__(self, name: str, index: bytes, mirror: bool) -> None:
        self.name = name
        self.index = index
        self.mirror = mirror
        self.filters = []
        self.transforms = []
        self.start_seq = 0
        self.start_time = 0.0

    def topic_of(self, topic: bytes) -> bytes:
        for transform in self.transforms:
            found = transform.of(topic)
            if found:
                return found
        return topic
