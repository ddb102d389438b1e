"""Requests about streams: create, update, info, list, names, delete, purge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from starlingmq.core.streams.message_index import TopicSelection
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream import stream_config as configs
from starlingmq.jetstream.api_errors import ApiError
from starlingmq.jetstream.api_requests import Api, ApiRequest, SequencedStream, consumers_of, require_subjects
from starlingmq.jetstream.consumer_config import consumer_config_of
from starlingmq.jetstream.json_forms import Natural
from starlingmq.jetstream.stream_config import SequencedStreamConfig, StreamRequest, invalid, stored_stream
from starlingmq.jetstream.subjects import any_collide, filter_or_none, subject_text
from starlingmq.jetstream.timestamps import time_text

STREAMS_MAX: Final = 1000
COMPARED_MAX: Final = 200_000  # pairs of filters that are compared for one request: 0.15 s
NAMES_PAGE: Final = 1024
LIST_PAGE: Final = 256
SUBJECTS_PAGE: Final = 100_000
DELETED_MAX: Final = 100_000  # sequences in ``deleted``; nats-server has no such limit

Fields = dict[str, Any]


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


def create(api: Api, names: list[str], request: ApiRequest) -> Fields:
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
    stored = stored_stream(config)
    stream = api.hub.streams.get(config.name)
    if stream is None:
        if len(api.hub.streams) >= STREAMS_MAX:
            raise ApiError(e.MAXIMUM_STREAMS)
        policy = configs.stream_policy(config)
        require_subjects(request, policy.subjects)
        _check_overlap(policy.subjects, api.hub.streams.values())
        stream = api.hub.create(config.name, policy, stored)
        api.advisories.tell("STREAM.CREATED", request.now, stream.name)
    elif stream.config != stored:
        raise ApiError(e.STREAM_NAME_EXISTS)
    return {**_info(api, stream, request.now), "did_create": True}


def update(api: Api, names: list[str], request: ApiRequest) -> Fields:
    config = forms.parsed(request.payload, StreamRequest)
    configs.check_stream(config)
    if config.name != names[0]:
        raise ApiError(e.STREAM_MISMATCH)
    stream = api.stream(config.name)
    old = configs.stream_config_of(stream.config)
    _check_replicas(api, config)
    configs.check_stream_update(old, config)
    _check_consumers(stream, old, config)
    policy = configs.stream_policy(config)
    require_subjects(request, policy.subjects)
    _check_overlap(policy.subjects, [each for each in api.hub.streams.values() if each is not stream])
    api.hub.change(stream, policy, stored_stream(config))
    api.advisories.tell("STREAM.UPDATED", request.now, stream.name)
    return _info(api, stream, request.now)


def _check_replicas(api: Api, config: SequencedStreamConfig) -> None:
    if config.num_replicas > api.replicas_max:
        raise ApiError(e.STREAM_REPLICAS)


def _check_overlap(filters: list[bytes], streams: Iterable[SequencedStream]) -> None:
    left = COMPARED_MAX
    for stream in streams:
        left -= len(filters) * len(stream.policy.subjects)
        if left < 0:
            raise ApiError(e.INSUFFICIENT_RESOURCES)
        if any_collide(filters, stream.policy.subjects):
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
    return {**fields, "config": forms.with_server_version(fields["config"], api.version)}


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
        "ts": time_text(now),
    }


def _chosen(api: Api, asked: StreamsRequest) -> list[str]:
    """The names of the streams that have a subject in common with what was asked for."""
    streams = api.hub.streams
    if not asked.subject:
        return sorted(streams)
    filter = filter_or_none(asked.subject)
    if filter is None:
        return []
    return sorted(name for name, stream in streams.items() if any_collide((filter,), stream.policy.subjects))


def infos(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, StreamsRequest)
    found, page = page_of(_chosen(api, asked), asked.offset, LIST_PAGE)
    streams = api.hub.streams
    return {**page, "streams": [stream_fields(streams[name], request.now) for name in found]}


def names(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, StreamsRequest)
    found, page = page_of(_chosen(api, asked), asked.offset, NAMES_PAGE)
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
    purged = 0 if filter is None else stream.purge(filter, asked.keep, asked.seq)
    return {"success": True, "purged": purged}
