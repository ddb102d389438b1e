"""The last message of a topic, and those before it: from retained messages, and from streams with one sequence."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict

from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.messages import RetainedMessage, Topic, encoded, whole
from starlingmq.admin.operator_problem import AdminError
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.stream_filters import time_of_text
from starlingmq.net.driver import Driver

HISTORY_MAX: Final = 1000
HISTORY_BYTES: Final = 4 << 20  # of payloads, after which a history ends early; ``next`` says where

StreamName = Annotated[
    str, Meta(max_length=255, description="Name of a stream. Default: the one with the latest message of the topic.")
]


class LastRequest(Struct, frozen=True):
    topic: Topic


class TopicHistoryRequest(Struct, frozen=True):
    topic: Topic
    stream: StreamName = ""
    limit: Annotated[int, Meta(ge=1, le=HISTORY_MAX, description="Maximum number of messages.")] = 100
    before: Annotated[int, Meta(ge=0, description="Only messages with lower offsets; 0: all.")] = 0
    since: Annotated[
        str, Meta(max_length=40, description="Only messages from this time on: Unix seconds or RFC 3339.")
    ] = ""


class TopicMessage(RetainedMessage, frozen=True):
    stream: Annotated[str | None, Meta(description="The stream that has the message; null: it is retained.")]
    offset: Annotated[int | None, Meta(description="Its sequence in the stream.")]
    node: str = ""


class TopicHistory(Struct, frozen=True):
    messages: Annotated[list[TopicMessage], Meta(description="The newest first.")]
    next: Annotated[int | None, Meta(description="The ``before`` of the next page; null: there is none.")]


class TopicActions:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.state = driver.state

    @action("topics.last", "GET /topics/last", NODE, content=True, ctl="last topic", said="{payload}")
    async def last(self, request: LastRequest) -> TopicMessage:
        """Get the last value of a topic: the retained message, or else the last one in a stream. Raises AdminError."""
        topic = encoded(request.topic)
        retained = self.state.retained.get(topic)
        if retained is not None and retained.loaded:
            return _shown(retained, None, None)
        stream = self._stream_with(topic)
        offset = 0 if stream is None else self._last(stream, topic)
        message = None if stream is None else _read(stream, offset)
        if stream is None or message is None:
            raise AdminError(404, "no retained message, and none in a stream with one sequence, on this topic")
        return _shown(message, stream, offset)

    @action(
        "topics.history",
        "GET /topics/history",
        NODE,
        content=True,
        ctl="history topic",
        columns="published_at: time, offset, stream*, qos*, publisher*, payload",
    )
    async def history(self, request: TopicHistoryRequest) -> TopicHistory:
        """List the messages of a topic that a stream with one sequence has, newest first. Raises AdminError."""
        topic = encoded(request.topic)
        stream = self._named(request.stream) if request.stream else self._stream_with(topic)
        known = None if stream is None else stream.index.topics.get(topic)
        if stream is None or known is None:
            raise AdminError(404, "no stream with one sequence has messages of this topic")
        since = _time(request.since)
        end = min(request.before - 1 if request.before else stream.end(), stream.end())
        found: list[TopicMessage] = []
        size = 0
        for seq in known.newest(end, request.limit):
            if stream.index.time_of(seq) < since:
                return TopicHistory(found, None)
            message = _read(stream, seq)
            if message is not None:
                found.append(_shown(message, stream, seq))
                size += len(message.payload)
            if size > HISTORY_BYTES or len(found) == request.limit:
                return TopicHistory(found, seq if known.first < seq else None)
        return TopicHistory(found, None)

    def _named(self, name: str) -> SequencedStream:
        stream = self.state.jetstream.streams.get(name)
        if stream is None:
            raise AdminError(404, "there is no stream with one sequence of this name")
        return stream

    def _stream_with(self, topic: bytes) -> SequencedStream | None:
        """The one with the latest message of this topic."""
        latest: SequencedStream | None = None
        when = -1.0
        for stream in self.state.jetstream.streams.values():
            last = self._last(stream, topic)
            if last != 0 and stream.index.time_of(last) > when:
                latest, when = stream, stream.index.time_of(last)
        return latest

    @staticmethod
    def _last(stream: SequencedStream, topic: bytes) -> int:
        """The sequence of its last message that may be shown; 0: there is none."""
        known = stream.index.topics.get(topic)
        return 0 if known is None else next(iter(known.newest(stream.end(), 1)), 0)


def _read(stream: SequencedStream, seq: int) -> Message | None:
    try:
        return stream.message(seq)
    except OSError as error:
        raise AdminError(503, f"the stream cannot be read: {error}") from None


def _shown(message: Message, stream: SequencedStream | None, offset: int | None) -> TopicMessage:
    return TopicMessage(**asdict(whole(message)), stream=None if stream is None else stream.name, offset=offset)


def _time(text: str) -> float:
    if not text:
        return 0.0
    try:
        return time_of_text(text)
    except ValueError:
        raise AdminError(400, "since: is neither Unix seconds nor RFC 3339") from None
