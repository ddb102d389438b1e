"""Requests about streams: create, update, info, list, names, delete, purge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

import msgspec

from starlingmq.core.streams.message_index import TopicSelection
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sourcing import Sourcing
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream import stream_config as configs
from starlingmq.jetstream.api_errors import ApiError
from starlingmq.jetstream.api_requests import Api, ApiRequest, SequencedStream, consumers_of
from starlingmq.jetstream.consumer_config import consumer_config_of
from starlingmq.jetstream.json_forms import Natural
from starlingmq.jetstream.stream_config import SequencedStreamConfig, StreamRequest, invalid, stored_stream
from starlingmq.jetstream.subjects import any_collide, filter_or_none, subject_text
from starlingmq.jetstream.timestamps import SECOND, time_text

STREAMS_MAX: Final = 1000
COMPARED_MAX: Final = 200_000  # pairs of filters that are compared for one request: 0.15 s
NAMES_PAGE: Final = 1024
LIST_PAGE: Final = 256
SUBJECTS_PAGE: Final = 100_000
DELETED_MAX: Final = 100_000  # sequences in ``deleted``; nats-server has no such limit

Fields = dict[str, Any]


class Checked(NamedTuple):
    """A request that may be carried out; ``policy`` None: the stream exists like this."""

    name: str
    policy: StreamPolicy | None
    stored: bytes


class PageRequest(msgspec.Struct, forbid_unknown_fields=True):
    offset: forms.Int64 = 0


class StreamsRequest(PageRequest):
    subject: str = ""


class InfoRequest(PageRequest):
    deleted_details: bool = False
    subjects_filter: str = ""


class PurgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    seq: Natural = 0
    filter: str = ""
    keep: Natural = 0


def page_of(items: list[Any], offset: int, size: int) -> tuple[list[Any], Fields]:
    """The items of a page, and the fields that say which one it is."""
    at = min(max(offset, 0), len(items))
    return items[at : at + size], {"total": len(items), "offset": at, "limit": size}


def checked_creation(api: Api, names: list[str], request: ApiRequest) -> Checked:
    """The settings of a stream that may be made. Raises ApiError."""
    config = forms.parsed(request.payload, StreamRequest)
    if config.name != names[0]:
        raise ApiError(e.STREAM_MISMATCH)
    if "/" in config.name or "\\" in config.name:
        raise ApiError(e.STREAM_NAME_HAS_SEPARATORS)
    if config.sealed:
        raise invalid("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid("stream has no mirror but does have mirror direct")
    configs.check_stream(config)
    _check_replicas(api, config)
    _check_origins(api, config)
    stored = stored_stream(config)
    known = api.config_of(config.name)
    if known is not None:
        if known != stored:
            raise ApiError(e.STREAM_NAME_EXISTS)
        return Checked(config.name, None, stored)
    if api.count_streams() >= STREAMS_MAX:
        raise ApiError(e.MAXIMUM_STREAMS)
    policy = configs.stream_policy(config)
    _check_overlap(policy.subjects, api.subjects_besides(config.name))
    return Checked(config.name, policy, stored)


def _check_origins(api: Api, config: SequencedStreamConfig) -> None:
    """Against the streams that are copied, which may be at other nodes."""
    mirror = config.mirror
    for source in [*config.sources, *([mirror] if mirror is not None else [])]:
        kind = 0 if source is mirror else 1
        known = api.config_of(source.name)
        if known is None:
            continue
        origin = configs.stream_config_of(known)
        if 0 < config.max_msg_size < origin.max_msg_size:
            raise ApiError(e.SIZE[kind])
        if kind == 0:
            config.mirror_direct = origin.allow_direct
    _check_cycles(api, config)


def _check_cycles(api: Api, config: SequencedStreamConfig) -> None:
    """As nats-server does, which looks at subjects only; and that nothing comes back which another source brought."""
    waiting: list[SequencedStreamConfig] = [config]
    taken: dict[str, list[str]] = {}  # by stream: what others have of it, in this circle
    backs: list[tuple[SequencedStreamConfig, str]] = []
    visited: set[str] = set()
    left = COMPARED_MAX
    while waiting:
        looked = waiting.pop()
        if looked.name in visited:
            continue
        visited.add(looked.name)
        for source in [*looked.sources, *([looked.mirror] if looked.mirror is not None else [])]:
            left -= 1 + len(looked.subjects)
            if left < 0:
                raise ApiError(e.INSUFFICIENT_RESOURCES)
            taken.setdefault(source.name, []).append(source.filter_subject or ">")
            if source.name == config.name:
                backs.append((looked, source.filter_subject))
            known = api.config_of(source.name)
            if source.name in visited:
                if looked.mirror is not None or _overlaps(looked.subjects, source.filter_subject):
                    raise invalid("detected cycle")
            elif known is not None:
                waiting.append(configs.stream_config_of(known))
    for looked, back in backs:
        filters = taken.get(looked.name, [])
        left -= len(filters)
        if left < 0:
            raise ApiError(e.INSUFFICIENT_RESOURCES)
        if looked.subject_transform is not None or _overlaps(filters, back):
            raise invalid("detected cycle")


def _overlaps(subjects: list[str], filter: str) -> bool:
    found = filter_or_none(filter)
    return found is None or any_collide((found,), [filter_or_none(each) or b"" for each in subjects])


def create(api: Api, names: list[str], request: ApiRequest) -> Fields:
    checked = checked_creation(api, names, request)
    stream = api.hub.streams.get(checked.name)
    if stream is None:
        policy = checked.policy or configs.stream_policy(configs.stream_config_of(checked.stored))
        stream = api.hub.create(checked.name, policy, checked.stored)
        api.advisories.tell("STREAM.CREATED", request.now, stream.name)
    return {**_info(api, stream, request.now), "did_create": True}


def checked_update(api: Api, names: list[str], request: ApiRequest) -> Checked:
    config = forms.parsed(request.payload, StreamRequest)
    configs.check_stream(config)
    if config.name != names[0]:
        raise ApiError(e.STREAM_MISMATCH)
    stream = api.stream(config.name)
    old = configs.stream_config_of(stream.config)
    _check_replicas(api, config)
    configs.check_stream_update(old, config)
    _check_origins(api, config)
    _check_consumers(stream, old, config)
    policy = configs.stream_policy(config)
    _check_overlap(policy.subjects, api.subjects_besides(config.name))
    return Checked(config.name, policy, stored_stream(config))


def update(api: Api, names: list[str], request: ApiRequest) -> Fields:
    checked = checked_update(api, names, request)
    stream = api.stream(checked.name)
    assert checked.policy is not None
    api.hub.change(stream, checked.policy, checked.stored)
    api.advisories.tell("STREAM.UPDATED", request.now, stream.name)
    return _info(api, stream, request.now)


def _check_replicas(api: Api, config: SequencedStreamConfig) -> None:
    if config.num_replicas > api.replicas_max:
        raise ApiError(e.STREAM_REPLICAS)


def _check_overlap(filters: list[bytes], others: Iterable[list[bytes]]) -> None:
    left = COMPARED_MAX
    for subjects in others:
        left -= len(filters) * len(subjects)
        if left < 0:
            raise ApiError(e.INSUFFICIENT_RESOURCES)
        if any_collide(filters, subjects):
            raise ApiError(e.STREAM_OVERLAP)


def _check_consumers(stream: SequencedStream, old: SequencedStreamConfig, new: SequencedStreamConfig) -> None:
    """New limits for consumers must not be exceeded by those that exist."""
    inactive, pending = new.consumer_limits.inactive_threshold, new.consumer_limits.max_ack_pending
    if new.consumer_limits == old.consumer_limits or (inactive <= 0 and pending <= 0):
        return
    beyond = []
    for consumer in consumers_of(stream).values():
        config = consumer_config_of(consumer.config)
        if 0 < inactive < config.inactive_threshold or 0 < pending < config.max_ack_pending:
            beyond.append(consumer.name)
    if beyond:
        raise ApiError(e.STREAM_UPDATE, f"change to limits violates consumers: {', '.join(sorted(beyond))}")


def info(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, InfoRequest)
    stream = api.stream(names[0])
    fields = _info(api, stream, request.now)
    state = fields["state"]
    page: Fields = {"total": 0, "offset": 0, "limit": 0}
    filter = filter_or_none(asked.subjects_filter) if asked.subjects_filter else None
    if filter is not None:
        counts = {each.topic: each.count for each in stream.index.matching(TopicSelection([filter]))}
        if counts:
            topics, page = page_of(sorted(counts), asked.offset, SUBJECTS_PAGE)
            if topics:
                state["subjects"] = {subject_text(topic): counts[topic] for topic in topics}
    if asked.deleted_details and state.get("num_deleted"):
        state["deleted"] = stream.index.gaps(DELETED_MAX)
    state["consumer_count"] = state.pop("consumer_count")
    return {**page, **fields}


def _info(api: Api, stream: SequencedStream, now: float) -> Fields:
    fields = stream_fields(stream, now)
    return {**fields, "config": forms.with_server_version(fields["config"], api.version), **api.place}


def stream_fields(stream: SequencedStream, now: float) -> Fields:
    index = stream.index
    state = {
        "messages": index.count,
        "bytes": index.octets,
        "first_seq": index.first if index.last else 0,
        "first_ts": time_text(index.time_of(index.first) if index.count else 0.0),
        "last_seq": index.last,
        "last_ts": time_text(stream.last_time),
        "num_subjects": len(index.topics),
        "num_deleted": index.last - index.first + 1 - index.count,
    }
    state = {name: value for name, value in state.items() if value or not name.startswith("num_")}
    return {
        "config": msgspec.json.decode(stream.config),
        "created": time_text(stream.created),
        "state": {**state, "consumer_count": len(consumers_of(stream))},
        **_source_fields(stream, now),
        "ts": time_text(now),
    }


def _source_fields(stream: SequencedStream, now: float) -> Fields:
    if not stream.policy.sources:
        return {}
    config = configs.stream_config_of(stream.config)
    sources = config.sources if config.mirror is None else [config.mirror]
    found = []
    for source, each in zip(sources, cast("list[Sourcing]", stream.sourcings), strict=False):
        fields: Fields = {"name": source.name, "lag": each.lag()}
        place = stream.places.get(each.settings.index)
        if place is not None:
            fields["seq"] = int(place[1].partition(b" ")[0])
        fields["active"] = round((now - each.heard_at) * SECOND) if each.heard_at else -1
        if each.origin is None and not each.is_far:
            fields["error"] = ApiError(e.STREAM_NOT_FOUND).fields()
        if source.filter_subject:
            fields["filter_subject"] = source.filter_subject
        if source.subject_transforms:
            fields["subject_transforms"] = msgspec.to_builtins(source.subject_transforms)
        found.append(fields)
    return {"mirror": found[0]} if config.mirror is not None and found else {"sources": found} if found else {}


def chosen(api: Api, asked: StreamsRequest) -> list[str]:
    """The names of the streams that have a subject in common with what was asked for."""
    if not asked.subject:
        return sorted(api.stream_names())
    filter = filter_or_none(asked.subject)
    if filter is None:
        return []
    return sorted(name for name in api.stream_names() if any_collide((filter,), api.subjects_of(name)))


def infos_page(api: Api, request: ApiRequest) -> tuple[list[str], Fields]:
    """The names of the streams on a page, and the fields that say which one it is."""
    asked = forms.optional(request.payload, StreamsRequest)
    return page_of(chosen(api, asked), asked.offset, LIST_PAGE)


def listed(api: Api, names: Iterable[str], now: float) -> list[Fields]:
    """The infos of those that are here."""
    streams = api.hub.streams
    return [{**stream_fields(streams[name], now), **api.place} for name in names if name in streams]


def infos(api: Api, names: list[str], request: ApiRequest) -> Fields:
    found, page = infos_page(api, request)
    return {**page, "streams": listed(api, found, request.now)}


def names(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, StreamsRequest)
    found, page = page_of(chosen(api, asked), asked.offset, NAMES_PAGE)
    return {**page, "streams": found or None}


def delete(api: Api, names: list[str], request: ApiRequest) -> Fields:
    forms.require_empty(request.payload)
    stream = api.stream(names[0])
    api.hub.delete(stream)
    api.advisories.tell("STREAM.DELETED", request.now, stream.name)
    return {"success": True}


def purge(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, PurgeRequest)
    if asked.seq and asked.keep:
        raise ApiError(e.BAD_REQUEST)
    stream = api.stream(names[0])
    if stream.policy.sealed:
        raise ApiError(e.STREAM_SEALED)
    if stream.policy.deny_purge:
        raise ApiError(e.STREAM_PURGE_FAILED, "stream purge not permitted")
    filter = filter_or_none(asked.filter) if asked.filter else b""
    try:
        purged = 0 if filter is None else stream.purge(filter, asked.keep, asked.seq)
    except OSError as error:
        raise ApiError(e.STREAM_PURGE_FAILED, error) from None
    return {"success": True, "purged": purged}
