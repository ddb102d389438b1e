"""A cache of subjects and topics with their translation: frequent ones are translated once.

The cache has two generations of each kind. When the younger is full, it becomes the elder; entries that were not used
since then are removed with the elder one before it. Clients choose both, so a generation is bounded by its bytes, too,
and long ones are not remembered.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.topics.topics import LONG
from starlingmq.wire.nats_frames import message_head
from starlingmq.wire.nats_subjects import subject_of, topic_of

GENERATION: Final = 4096  # entries
GENERATION_BYTES: Final = 512 << 10  # of subjects or topics


class SubjectCache:
    _topics: dict[bytes, bytes]  # by subject
    _older_topics: dict[bytes, bytes]
    _heads: dict[bytes, bytes]  # the beginning of a MSG, by topic
    _older_heads: dict[bytes, bytes]
    _topic_bytes: int  # of the keys of ``_topics``
    _head_bytes: int  # of the keys of ``_heads``
    _subject: bytes  # the last subject and its topic
    _topic: bytes
    _headed: bytes  # the last topic and its head
    _head: bytes

    def __init__(self) -> None:
        self._topics = {}
        self._older_topics = {}
        self._heads = {}
        self._older_heads = {}
        self._topic_bytes = 0
        self._head_bytes = 0
        self._subject = b""
        self._topic = b""
        self._headed = b""
        self._head = b""

    def topic_of(self, subject: bytes) -> bytes:
        if subject == self._subject:
            return self._topic
        topic = self._topics.get(subject)
        if topic is None:
            topic = self._learn_topic(subject)
        self._subject = subject
        self._topic = topic
        return topic

    def _learn_topic(self, subject: bytes) -> bytes:
        topic = self._older_topics.get(subject)
        if topic is None:
            topic = topic_of(subject)
        if len(subject) > LONG:
            return topic
        if len(self._topics) >= GENERATION or self._topic_bytes >= GENERATION_BYTES:
            self._older_topics, self._topics, self._topic_bytes = self._topics, {}, 0
        self._topics[subject] = topic
        self._topic_bytes += len(subject)
        return topic

    def head_of(self, topic: bytes) -> bytes:
        """The head of a MSG with this topic; b"" if it has no subject."""
        if topic is self._headed:
            return self._head
        head = self._heads.get(topic)
        if head is None:
            head = self._learn_head(topic)
        self._headed = topic
        self._head = head
        return head

    def _learn_head(self, topic: bytes) -> bytes:
        head = self._older_heads.get(topic)
        if head is None:
            subject = subject_of(topic)
            head = message_head(subject) if subject else b""
        if len(topic) > LONG:
            return head
        if len(self._heads) >= GENERATION or self._head_bytes >= GENERATION_BYTES:
            self._older_heads, self._heads, self._head_bytes = self._heads, {}, 0
        self._heads[topic] = head
        self._head_bytes += len(topic)
        return head

    def age(self) -> None:
        """A period is over: entries that were not used in it or in the one before are removed."""
        self._older_topics, self._topics, self._topic_bytes = self._topics, {}, 0
        self._older_heads, self._heads, self._head_bytes = self._heads, {}, 0

    def forget(self) -> None:
        """Empty the cache: memory is short."""
        self.age()
        self.age()
