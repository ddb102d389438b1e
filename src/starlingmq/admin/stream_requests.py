"""Requests and replies of the actions on streams, and of the exchange of stream definitions between nodes."""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict, fields

from starlingmq.storage.streams.stream_views import StreamView


class NewStream(Struct, frozen=True):
    """The settings of a stream as texts; "" is the default. ``topics`` has one filter per line."""

    name: str = ""
    topics: str = ""
    retention_time: str = ""
    retention_size: str = ""
    when_full: str = ""

    @classmethod
    def of(cls, request: NewStream) -> Self:
        """The settings alone, of a request that may have further fields."""
        return cls(**{field.name: getattr(request, field.name) for field in fields(cls)})

    def settings(self) -> dict[str, Any]:
        given = {name: text for name, text in asdict(self).items() if text}
        return {**given, "topics": self.topics.split("\n") if self.topics else []}


class OneStream(Struct, frozen=True):
    name: str = ""


class StreamTrim(Struct, frozen=True):
    """``before``: the first offset to keep; None deletes all messages."""

    name: str = ""
    before: int | None = None


class ConsumerPosition(Struct, frozen=True):
    """``next``: the offset of the first message that the consumer has not processed yet."""

    name: str = ""
    consumer: str = ""
    next: int | None = None
    pins: bool = False


class OneConsumer(Struct, frozen=True):
    name: str = ""
    consumer: str = ""


class AccessRequest(Struct, frozen=True):
    """``user``: HTTP credentials, "" for an anonymous reader. ``streams`` has one name per line."""

    user: str = ""
    peer: str = ""
    streams: str = ""


class StreamsReply(Struct, frozen=True):
    streams: list[StreamView]
    node: str = ""


class GossipEntry(Struct, frozen=True):
    """``at``: Unix seconds. ``made``: the arguments of stream.create; empty if the stream was deleted."""

    name: str
    at: float
    made: dict[str, str] = {}


class GossipRequest(NewStream, frozen=True):
    """A stream that was created or deleted on all nodes."""

    deleted: bool = False

    @classmethod
    def created(cls, stream: NewStream) -> Self:
        return cls(stream.name, stream.topics, stream.retention_time, stream.retention_size, stream.when_full)


class GossipNews(Struct, frozen=True):
    """Entries that another node must receive."""

    said: list[GossipEntry] = []
