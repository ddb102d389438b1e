"""Subjects and topics, remembered with their other spelling: what is published to again and again is spelled once.

Of each kind two generations are kept: when the younger is full it becomes the elder, and what nobody asked for since
then is forgotten with the elder before it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.nats_frames import message_head
from starlingmq.wire.nats_subjects import subject_of, topic_of

GENERATION: Final = 4096


class SubjectCache:
    _topics: dict[bytes, bytes]  # by subject
    _older_topics: dict[bytes, bytes]
    _heads: dict[bytes, bytes]  # what a message begins with, by topic
    _older_heads: dict[bytes, bytes]
    _subject: bytes  # the last one that was asked for, and what was found
    _topic: bytes
    _headed: bytes  # the same the other way round
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
        """The head of a MSG that was published to ``topic``; b"" if it has no subject."""
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
