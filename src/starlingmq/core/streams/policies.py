"""The settings of a JetStream stream, as the core uses them.

The API builds them from the JSON that a client sends (jetstream/stream_config.py), after validation. Times are in
seconds, subjects are topics and topic filters. -1: no limit.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.core.streams.subject_transforms import Republishing

# Retention: when a message is removed.
LIMITS: Final = 0
INTEREST: Final = 1
WORK_QUEUE: Final = 2

# Discarded at a limit: the oldest messages, or the new one.
DISCARD_OLD: Final = 0
DISCARD_NEW: Final = 1


class StreamPolicy:
    subjects: list[bytes]  # topic filters
    retention: int
    discard: int
    discard_new_per_subject: bool
    max_messages: int
    max_bytes: int
    max_age: float  # 0: no limit
    max_message_size: int
    max_per_subject: int
    max_consumers: int
    duplicate_window: float
    no_ack: bool
    deny_delete: bool
    deny_purge: bool
    sealed: bool
    allow_rollup: bool
    allow_ttl: bool
    allow_direct: bool
    delete_marker_ttl: float  # 0: no markers
    memory: bool
    replicas: int
    first_seq: int
    sources: list[SourceSettings]  # or the origin of a mirror
    republishing: Republishing | None  # and subject transforms; None: neither

    def __init__(self) -> None:
        self.subjects = []
        self.retention = LIMITS
        self.discard = DISCARD_OLD
        self.discard_new_per_subject = False
        self.max_messages = -1
        self.max_bytes = -1
        self.max_age = 0.0
        self.max_message_size = -1
        self.max_per_subject = -1
        self.max_consumers = -1
        self.duplicate_window = 120.0
        self.no_ack = False
        self.deny_delete = False
        self.deny_purge = False
        self.sealed = False
        self.allow_rollup = False
        self.allow_ttl = False
        self.allow_direct = False
        self.delete_marker_ttl = 0.0
        self.memory = False
        self.replicas = 1
        self.first_seq = 0
        self.sources = []
        self.republishing = None
