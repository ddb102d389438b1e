"""The subjects that a NATS bridge carries, and their names at the other side: ``topic_maps`` in the spelling of NATS.

An entry ``$share/group/filter`` subscribes as a member of that queue group. The filter ``a/#`` needs two subscriptions,
``a`` and ``a.>``; so each message comes once for each entry that it matches, and only the first of them carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from starlingmq.bridges.topic_maps import CACHE_MAX, TopicEntry
from starlingmq.config.bridges_section import BridgeTopic
from starlingmq.core.topics.topics import LONG, matches, valid_topic
from starlingmq.wire.nats_subjects import subject_of, topic_of

SHARE: Final = "$share/"
JETSTREAM: Final = "$JS/"
FOR_JETSTREAM: Final = ("$JS/ACK/#", "$JS/FC/#")
AS_IT_IS: Final = (b"$JS.ACK.", b"$JS.FC.")  # reply subjects that clients read, and that FOR_JETSTREAM carries back
NOWHERE: Final = (-1, b"")


class SubjectMap:
    groups: list[bytes]  # of each entry, b"" without
    wanted: list[tuple[bytes, bytes, bytes]]  # subject, group and sid of each subscription
    _entries: list[TopicEntry]
    _by_sid: dict[bytes, int]
    _known: dict[bytes, tuple[int, bytes]]

    def __init__(self, topics: Iterable[BridgeTopic], outwards: bool) -> None:
        other = "in" if outwards else "out"
        chosen = [topic for topic in topics if topic.direction != other]
        if outwards and any(_reaches_jetstream(topic) for topic in chosen):
            chosen += [BridgeTopic(filter=filter) for filter in FOR_JETSTREAM]
        self.groups = []
        self.wanted = []
        self._entries = []
        self._by_sid = {}
        self._known = {}
        for index, topic in enumerate(chosen):
            group = b""
            if topic.filter.startswith(SHARE):
                name, _, filter = topic.filter.removeprefix(SHARE).partition("/")
                group = name.encode()
                topic = structs.replace(topic, filter=filter)
            entry = TopicEntry(topic, outwards)
            self.groups.append(group)
            self._entries.append(entry)
            for subject in subjects_of(entry.filter):
                sid = b"%d" % len(self.wanted)
                self.wanted.append((subject, group, sid))
                self._by_sid[sid] = index

    def entry_of(self, sid: bytes) -> int:
        """The entry of this subscription; -1: there is none."""
        return self._by_sid.get(sid, -1)

    def find(self, subject: bytes) -> tuple[int, bytes]:
        """The entry that carries this subject, and its name at the other side: b"" if it is not carried."""
        known = self._known.get(subject)
        if known is not None:
            return known
        found = self._find(topic_of(subject))
        if len(subject) <= LONG:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            self._known[subject] = found
        return found

    def _find(self, topic: bytes) -> tuple[int, bytes]:
        if not topic or not valid_topic(topic):
            return NOWHERE
        for index, entry in enumerate(self._entries):
            if matches(entry.filter, topic):
                name = entry.other_name(topic)
                carried = valid_topic(name) and not name.startswith(b"$SYS/")
                return (index, subject_of(name)) if carried else NOWHERE
        return NOWHERE


def subjects_of(filter: bytes) -> list[bytes]:
    """The subjects to subscribe to for a filter of MQTT."""
    if filter != b"#" and filter.endswith(b"/#"):
        return [subject_of(filter[:-2]), subject_of(filter)]
    return [subject_of(filter)]


def _reaches_jetstream(topic: BridgeTopic) -> bool:
    return (topic.rename or topic.remote_prefix + topic.filter).startswith(JETSTREAM)
