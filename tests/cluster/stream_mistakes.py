"""Mistakes of JetStream in a cluster, made on purpose, for the worlds of ``stream_world`` to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import msgspec
from tests.planting import Plant, around

from starlingmq.cluster.etcd.shared_value import SharedValue
from starlingmq.core.jetstream.bound_consumer import is_group
from starlingmq.core.jetstream.far_readers import FarReaders
from starlingmq.core.jetstream.hub import JetStream
from starlingmq.core.jetstream.stream_readers import MqttReaders
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.jetstream import cluster_requests
from starlingmq.jetstream.cluster_requests import ClusterRequests

Sound = Callable[..., Any]


def without_comparing(sound: Sound, value: SharedValue, compares: Any, success: Any, failure: Any) -> Any:
    return sound(value, (), success, failure)


def made_at_once(sound: Sound, change: Any, entries: Any) -> Any:
    """The stream is there before the registry has it."""
    if change.names[0] not in entries:
        change.requests.service.answer_here(change.asked)
    return sound(change, entries)


def not_stored(sound: Sound, hub: JetStream, *rest: Any) -> None:
    """Messages of other nodes are acknowledged, and are in memory only."""
    hub.ctx.recording = False
    sound(hub, *rest)
    hub.ctx.recording = True


def without_ids(sound: Sound, stream: SequencedStream, message: Any) -> None:
    """At a start."""
    sound(stream, message)
    stream._ids.clear()
    stream._id_times.clear()


def of_all_homes(sound: Sound, requests: ClusterRequests) -> None:
    """Each node makes the streams of all."""
    registry = requests.streams.registry
    entries = registry.entries
    registry.entries = {
        name: msgspec.structs.replace(entry, home=requests.streams.name) for name, entry in entries.items()
    }
    sound(requests)
    registry.entries = entries


def answered_elsewhere(sound: Sound, requests: ClusterRequests, asked: Any, *rest: Any) -> None:
    """A node answers in place of the home."""
    requests.service.answer_here(asked)


def whatever_it_follows(sound: Sound, readers: FarReaders, told: Any) -> Any:
    reading = readers._readings.get(told.reader)
    told.after = told.after if reading is None else reading.next
    return sound(readers, told)


def acknowledged_at_once(sound: Sound, readers: FarReaders, reading: Any, told: Any) -> None:
    sound(readers, reading, told)
    if readers.far is not None:
        readers.far.acknowledge_read(told.reply, b"+ACK")


def from_now_on(sound: Sound, consumer: JetStreamConsumer, data: bytes, now: float) -> None:
    """A group forgets its position when its home is lost."""
    sound(consumer, data, now)
    if is_group(consumer.name):
        consumer.next = consumer._source.last + 1


MISTAKES: Final[dict[str, Callable[[], Plant]]] = {
    "the registry is written without comparing": lambda: around(SharedValue, "_send", without_comparing),
    "a stream is made before the registry has it": lambda: around(cluster_requests._Creation, "wanted", made_at_once),
    "acknowledgements are answered before they are stored": lambda: patch.object(
        JetStream, "save_awaited", lambda hub: hub._awaited.clear()
    ),
    "messages of other nodes are acknowledged and not stored": lambda: around(JetStream, "arrived", not_stored),
    "ids of messages are forgotten at a start": lambda: around(SequencedStream, "restore", without_ids),
    "each node follows all entries": lambda: around(ClusterRequests, "follow", of_all_homes),
    "a reader does not see that messages are missing": lambda: around(FarReaders, "told", whatever_it_follows),
    "positions stay behind when a session moves": lambda: patch.object(
        MqttReaders, "set_position", lambda readers, session, whole, position: None
    ),
    "what members of a group have is not renewed": lambda: patch.object(FarReaders, "_renew", lambda readers: None),
    "messages of a group are acknowledged before the member has done so": lambda: around(
        FarReaders, "_give_of_queue", acknowledged_at_once
    ),
    "a group forgets its position at a start": lambda: around(JetStreamConsumer, "restore", from_now_on),
    "pull requests are answered where they are asked": lambda: around(ClusterRequests, "_ask_home", answered_elsewhere),
}
