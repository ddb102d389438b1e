"""Subjects and topics, remembered with their other spelling: what is published to again and again is spelled once.

Of each kind two generations are kept: when the younger is full it becomes the elder, and what nobody asked for since
then is forgotten with the elder before it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.nats_subjects import subject_of, topic_of

GENERATION: Final = 4096


class Spellings:
    _topics: dict[bytes, bytes]  # by subject
    _older_topics: dict[bytes, bytes]
    _subjects: dict[bytes, bytes]  # by topic
    _older_subjects: dict[bytes, bytes]

    def __init__(self) -> None:
        self._topics = {}
        self._older_topics = {}
        self._subjects = {}
        self._older_subjects = {}

    def topic_of(self, subject: bytes) -> bytes:
        topic = self._topics.get(subject)
        if topic is not None:
            return topic
        topic = self._older_topics.get(subject)
        if topic is None:
            topic = topic_of(subject)
        if len(self._topics) >= GENERATION:
            self._older_topics = self._topics
            self._topics = {}
        self._topics[subject] = topic
        return topic

    def subject_of(self, topic: bytes) -> bytes:
        subject = self._subjects.get(topic)
        if subject is not None:
            return subject
        subject = self._older_subjects.get(topic)
        if subject is None:
            subject = subject_of(topic)
        if len(self._subjects) >= GENERATION:
            self._older_subjects = self._subjects
            self._subjects = {}
        self._subjects[topic] = subject
        return subject
