"""Requests for messages of a stream: as JSON, to delete one, and direct get, whose answers are messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from starlingmq.core.messages.message import Message
from starlingmq.core.nats.jetstream_port import API_LEVEL
from starlingmq.core.streams.message_index import MessageIndex, TopicSelection
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream.api_errors import ApiError
from starlingmq.jetstream.api_requests import Api, ApiRequest, SequencedStream
from starlingmq.jetstream.json_forms import Int64, Natural, is_empty, parsed
from starlingmq.jetstream.subjects import filter_or_none, subject_text
from starlingmq.jetstream.timestamps import time_of, time_text
from starlingmq.wire.nats_headers import carried

BATCH_MAX: Final = 1024
"""Messages that are sent for one direct get. The requester asks for the rest, whose number it is told."""
BATCH_BYTES: Final = 8 << 20
LEVEL_HEADER: Final = b"\r\nNats-Required-Api-Level:"


class GetRequest(msgspec.Struct):
    seq: Natural = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: Int64 = 0
    max_bytes: Int64 = 0
    start_time: str = ""
    multi_last: list[str] = []
    up_to_seq: Natural = 0
    up_to_time: str = ""
    no_hdr: bool = False

    def asks_nothing(self) -> bool:
        return not (self.seq or self.last_by_subj or self.next_by_subj or self.start_time)

    def contradicts_itself(self) -> bool:
        chosen = (bool(self.seq), bool(self.last_by_subj), bool(self.start_time))
        return sum(chosen) > 1 or bool(self.last_by_subj and self.next_by_subj)


class StrictGetRequest(GetRequest, forbid_unknown_fields=True):
    """The same as a request that is answered with JSON."""


class DeleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    seq: Natural = 0
    no_erase: bool = False


def requires_higher_level(headers: bytes) -> bool:
    _, found, rest = headers.partition(LEVEL_HEADER)
    level = rest.partition(b"\r\n")[0].strip()
    return bool(found) and (not level.isdigit() or len(level) > 9 or int(level) > API_LEVEL)


def status(request: ApiRequest, line: str) -> None:
    if request.reply:
        request.send(f"NATS/1.0 {line}\r\n\r\n".encode(), b"")


def get(api: Api, names: list[str], request: ApiRequest) -> dict[str, Any]:
    if is_empty(request.payload):
        raise ApiError(e.BAD_REQUEST)
    asked = parsed(request.payload, StrictGetRequest)
    if asked.batch > 0 or asked.max_bytes > 0 or asked.contradicts_itself() or asked.asks_nothing():
        raise ApiError(e.BAD_REQUEST)
    stream = api.stream(names[0])
    try:
        seq = _first_of(stream.index, asked)
    except ValueError as error:
        raise ApiError(e.INVALID_JSON, error) from None
    message = stream.message(seq)
    if message is None:
        raise ApiError(e.NO_MESSAGE_FOUND)
    headers = b"" if asked.no_hdr else carried(message.properties).headers
    parts = {"hdrs": b64encode(headers).decode(), "data": b64encode(message.payload).decode()}
    parts = {name: value for name, value in parts.items() if value}
    shown = {"subject": subject_text(message.topic), "seq": seq, **parts, "time": time_text(message.published_at)}
    return {"message": shown}


def _first_of(index: MessageIndex, asked: GetRequest) -> int:
    """The sequence of the first message that is asked for, which may not be there. Raises ValueError."""
    seq = index.since(time_of(asked.start_time)) if asked.start_time else asked.seq
    if not asked.next_by_subj and not asked.last_by_subj:
        return seq
    filter = filter_or_none(asked.next_by_subj or asked.last_by_subj)
    if filter is None:
        return 0
    if asked.next_by_subj:
        return index.next_of(max(seq, 1), TopicSelection([filter]))
    return max((each.last for each in index.matching(TopicSelection([filter]))), default=0)


def delete(api: Api, names: list[str], request: ApiRequest) -> dict[str, Any]:
    if is_empty(request.payload):
        raise ApiError(e.BAD_REQUEST)
    seq = parsed(request.payload, DeleteRequest).seq
    stream = api.stream(names[0])
    if stream.policy.sealed:
        raise ApiError(e.STREAM_SEALED)
    failed = "message delete not permitted" if stream.policy.deny_delete else ""
    failed = failed or ("stream store EOF" if seq > stream.index.last else "")
    failed = failed or ("no message found" if seq < stream.index.first else "")
    if failed:
        raise ApiError(e.STREAM_MESSAGE_DELETE_FAILED, failed)
    if not stream.remove(seq):
        raise ApiError(e.SEQUENCE_NOT_FOUND, seq)
    return {"success": True}


def direct_get(api: Api, names: list[str], request: ApiRequest) -> None:
    """``DIRECT.GET.stream``, or ``DIRECT.GET.stream.subject`` for the last message of a subject."""
    stream = api.hub.streams.get(names[0])
    if stream is None or not stream.policy.allow_direct:
        request.no_responders()
    elif request.reply:
        try:
            _answer_directly(stream, _direct_request(request.payload, ".".join(names[1:])), request)
        except ValueError as problem:
            status(request, str(problem))


def _direct_request(payload: bytes, key: str) -> GetRequest:
    """Raises ValueError with a status."""
    if not payload and not key:
        raise ValueError("408 Empty Request")
    try:
        asked = msgspec.json.decode(payload or b"{}", type=GetRequest)
        for text in (asked.start_time, asked.up_to_time):
            if text:
                time_of(text)
    except (msgspec.DecodeError, ValueError):
        raise ValueError("408 Malformed Request") from None
    if key:
        if asked != GetRequest(max_bytes=asked.max_bytes, no_hdr=asked.no_hdr):
            raise ValueError("408 Bad Request")
        asked.last_by_subj = key
    elif asked.asks_nothing() and not asked.multi_last:
        raise ValueError("408 Empty Request")
    elif (
        asked.contradicts_itself()
        or (asked.last_by_subj and (asked.batch > 0 or asked.multi_last))
        or (asked.next_by_subj and asked.multi_last)
        or (asked.up_to_seq and asked.up_to_time)
    ):
        raise ValueError("408 Bad Request")
    return asked


def _answer_directly(stream: SequencedStream, asked: GetRequest, request: ApiRequest) -> None:
    """Raises ValueError with a status."""
    index = stream.index
    if asked.multi_last:
        up_to = index.since(time_of(asked.up_to_time)) - 1 if asked.up_to_time else asked.up_to_seq or index.last
        found = _last_ones(index, asked, up_to)
        _send_batch(stream, asked, request, found, len(found), b"Nats-UpTo-Sequence: %d\r\n" % up_to)
        return
    seq = _first_of(index, asked)
    if asked.batch > 0:
        selection = TopicSelection([filter_or_none(asked.next_by_subj) or b""] if asked.next_by_subj else [])
        pending = index.waiting(seq, selection) if seq else 0
        _send_batch(stream, asked, request, _rising(index, seq, selection), pending, b"")
        return
    message = stream.message(seq)
    if message is None:
        raise ValueError("404 Message Not Found")
    request.send(b"" if asked.no_hdr else headers_of(stream, message, seq, b""), message.payload)


def _rising(index: MessageIndex, seq: int, selection: TopicSelection) -> Iterator[int]:
    while seq and (seq := index.next_of(seq, selection)):
        yield seq
        seq += 1


def _last_ones(index: MessageIndex, asked: GetRequest, up_to: int) -> list[int]:
    """The last message of each subject, as of the sequence ``up_to``. Raises ValueError with a status."""
    if len(asked.multi_last) > BATCH_MAX:
        raise ValueError("413 Too Many Results")
    filters = [each for each in map(filter_or_none, asked.multi_last) if each is not None]
    topics = index.matching(TopicSelection(filters)) if filters and up_to >= index.first else []
    last = [topic.last if topic.last <= up_to else last_up_to(index, topic.topic, up_to) for topic in topics]
    found = sorted(seq for seq in last if seq >= max(asked.seq, 1))
    if len(found) > BATCH_MAX:
        raise ValueError("413 Too Many Results")
    if not found:
        raise ValueError("404 No Results")
    return found


def last_up_to(index: MessageIndex, topic: bytes, up_to: int) -> int:
    """The last sequence of a topic that is not above ``up_to``; 0: none. Halves the range of sequences."""
    sequences = index.topics[topic]
    low, high = sequences.first, up_to
    if low > up_to:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        at = sequences.next(middle)
        if 0 < at <= up_to:
            low = at
        else:
            high = middle - 1
    return low


def _send_batch(
    stream: SequencedStream, asked: GetRequest, request: ApiRequest, found: Iterable[int], pending: int, end: bytes
) -> None:
    """Raises ValueError with a status."""
    limit = min(asked.batch, BATCH_MAX) if asked.batch > 0 else BATCH_MAX
    octets = min(asked.max_bytes, BATCH_BYTES) if asked.max_bytes > 0 else BATCH_BYTES
    last = sent = 0
    for seq in found:
        message = stream.message(seq)
        if message is None:
            continue
        pending -= 1
        more = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)
        request.send(b"" if asked.no_hdr else headers_of(stream, message, seq, more), message.payload)
        last = seq
        sent += 1
        octets -= message.octets
        if sent >= limit or octets <= 0:
            break
    if not sent:
        raise ValueError("404 Message Not Found")
    head = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (max(pending, 0), last)
    request.send(b"%b%b\r\n" % (head, end), b"")


def headers_of(stream: SequencedStream, message: Message, seq: int, more: bytes) -> bytes:
    """The message's own header block, and where it is in the stream."""
    own = carried(message.properties).headers or b"NATS/1.0\r\n\r\n"
    place = f"Nats-Stream: {stream.name}\r\nNats-Subject: {subject_text(message.topic)}\r\nNats-Sequence: {seq}\r\n"
    return b"%b%bNats-Time-Stamp: %b\r\n%b\r\n" % (
        own[:-2],
        place.encode(),
        time_text(message.published_at).encode(),
        more,
    )
