"""A cache of subjects and topics with their translation: frequent ones are translated once.

The cache has two generations of each kind. When the younger is full, it becomes the elder; entries that were not used
since then are removed with the elder one before it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.nats_frames import message_head
from starlingmq.wire.nats_subjects import subject_of, topic_of

GENERATION: Final = 4096


class SubjectCache:
    _topics: dict[bytes, bytes]  # by subject
    _older_topics: dict[bytes, bytes]
    _heads: dict[bytes, bytes]  # the beginning of a MSG, by topic
    _older_heads: dict[bytes, bytes]
    _subject: bytes  # the last subject and its topic
    _topic: bytes
    _headed: bytes  # the last topic and its head
    _head: bytes

    def __init__(self) -> None:
        self._topics = {}
        self._older_topics = {}
        self._heads = {}
        self._older_heads = {}
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
        if len(self._topics) >= GENERATION:
            self._older_topics = self._topics
            self._topics = {}
        self._topics[subject] = topic
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
        if len(self._heads) >= GENERATION:
            self._older_heads = self._heads
            self._heads = {}
        self._heads[topic] = head
        return head
