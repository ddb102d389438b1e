"""Requests about consumers: create in three forms, info, list, names, delete, pause, and the next messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from starlingmq.core.jetstream.bound_consumer import is_group
from starlingmq.core.streams.policies import WORK_QUEUE
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import consumer_config as configs
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream.api_errors import ApiError
from starlingmq.jetstream.api_requests import (
    Api,
    ApiRequest,
    Consumer,
    SequencedStream,
    consumers_of,
)
from starlingmq.jetstream.consumer_config import ConsumerConfig, ConsumerRequest
from starlingmq.jetstream.stream_api import COMPARED_MAX, LIST_PAGE, NAMES_PAGE, PageRequest, page_of
from starlingmq.jetstream.stream_config import stream_config_of
from starlingmq.jetstream.subjects import any_collide
from starlingmq.jetstream.timestamps import NEVER, SECOND, nanoseconds, time_of, time_text

CONSUMERS_MAX: Final = 100_000  # of all streams: some 550 MB
INACTIVE: Final = 5 * SECOND  # an unused ephemeral consumer is kept for so long by default
NOT_PAUSED: Final = {"paused": False, "pause_until": NEVER}

Fields = dict[str, Any]


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    pause_until: str = ""


def create(api: Api, names: list[str], request: ApiRequest) -> Fields:
    """``CONSUMER.CREATE.stream``, which names it itself, or ``CONSUMER.CREATE.stream.consumer[.filter]``."""
    asked = forms.parsed(request.payload, ConsumerRequest)
    config = asked.config
    _check_names(asked, names[0], config.name if len(names) == 1 else names[1])
    if len(names) == 1 and config.durable_name:
        raise ApiError(e.EPHEMERAL_WITH_DURABLE)
    if len(names) > 1:
        if config.durable_name not in ("", names[1]):
            raise ApiError(e.DURABLE_MISMATCH)
        config.name = names[1]
    filter = ".".join(names[2:])
    if filter and config.filter_subjects:
        raise ApiError(e.FILTERS_IN_SUBJECT)
    if filter not in ("", config.filter_subject):
        raise ApiError(e.FILTER_MISMATCH)
    return _create(api, asked, request)


def create_durable(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.parsed(request.payload, ConsumerRequest)
    _check_names(asked, names[0], names[1])
    if not asked.config.durable_name:
        raise ApiError(e.DURABLE_NOT_SET)
    if asked.config.durable_name != names[1]:
        raise ApiError(e.DURABLE_MISMATCH)
    asked.config.name = names[1]
    return _create(api, asked, request)


def _check_names(asked: ConsumerRequest, stream: str, consumer: str) -> None:
    if asked.stream_name != stream:
        raise ApiError(e.STREAM_MISMATCH)
    if "/" in consumer or "\\" in consumer:
        raise ApiError(e.CONSUMER_NAME_HAS_SEPARATORS)


def _create(api: Api, asked: ConsumerRequest, request: ApiRequest) -> Fields:
    config = asked.config
    if config.num_replicas > api.replicas_max:
        raise ApiError(e.STREAM_REPLICAS)
    stream = api.stream(asked.stream_name)
    name = config.durable_name or config.name
    existing = consumers_of(stream).get(name)
    if existing is not None:
        config.pause_until = configs.consumer_config_of(existing.config).pause_until
    configs.check_consumer(config, stream_config_of(stream.config), asked.pedantic)
    if existing is not None:
        consumer = _change(api, stream, existing, asked)
    elif asked.action == "update":
        raise ApiError(e.CONSUMER_MISSING)
    else:
        consumer = _add(api, stream, name or api.unique()[:8], config)
        api.advisories.tell("CONSUMER.CREATED", request.now, stream.name, consumer.name, action="create")
        if consumer.policy.paused_until > request.now:
            _tell_of_pause(api, stream, consumer, request.now)
    return _info(api, stream, consumer, request.now)


def create_consumer(api: Api, stream: SequencedStream, name: str, config: ConsumerConfig, now: float) -> Consumer:
    """A consumer that no client of NATS has asked for by the API."""
    configs.check_consumer(config, stream_config_of(stream.config), False)
    consumer = _add(api, stream, name, config)
    api.advisories.tell("CONSUMER.CREATED", now, stream.name, consumer.name, action="create")
    return consumer


def _change(api: Api, stream: SequencedStream, existing: Consumer, asked: ConsumerRequest) -> Consumer:
    config, old = asked.config, configs.consumer_config_of(existing.config)
    if asked.action == "create" and config != old:
        raise ApiError(e.CONSUMER_EXISTS)
    _set_inactive(config)
    policy, stored = configs.made(config)
    if stream.policy.retention == WORK_QUEUE and not _is_unique(stream, existing.name, policy.filters):
        raise ApiError(e.WORK_QUEUE_UNIQUE)
    configs.check_consumer_update(old, config)
    if old.deliver_subject != config.deliver_subject and existing.push_bound:
        raise ApiError(e.CONSUMER_NAME_EXISTS)
    return existing if config == old else api.hub.change_consumer(stream, existing.name, policy, stored)


def _add(api: Api, stream: SequencedStream, name: str, config: ConsumerConfig) -> Consumer:
    consumers = consumers_of(stream)
    total = sum(len(consumers_of(each)) for each in api.hub.streams.values())
    if 0 < stream.policy.max_consumers <= len(consumers) or total >= CONSUMERS_MAX:
        raise ApiError(e.MAXIMUM_CONSUMERS)
    if len(name) > forms.NAME_MAX:
        raise ApiError(e.CONSUMER_NAME_TOO_LONG, forms.NAME_MAX)
    config.name = name
    _set_inactive(config)
    policy, stored = configs.made(config)
    if stream.policy.retention == WORK_QUEUE and not is_group(name):
        if config.ack_policy != "explicit":
            raise ApiError(e.WORK_QUEUE_ACKS)
        if config.deliver_policy != "all":
            raise ApiError(e.WORK_QUEUE_ALL)
        if not policy.filters and not all(map(is_group, consumers)):
            raise ApiError(e.WORK_QUEUE_UNFILTERED)
        if not _is_unique(stream, name, policy.filters):
            raise ApiError(e.WORK_QUEUE_UNIQUE)
    return api.hub.add_consumer(stream, name, policy, stored)


def _set_inactive(config: ConsumerConfig) -> None:
    if not config.durable_name and config.inactive_threshold == 0:
        config.inactive_threshold = INACTIVE


def _is_unique(stream: SequencedStream, name: str, filters: list[bytes]) -> bool:
    """Whether no other consumer gets a message that matches ``filters``."""
    left = COMPARED_MAX
    for other in consumers_of(stream).values():
        if other.name == name or not filters or is_group(other.name):
            continue
        left -= len(filters) * len(other.policy.filters)
        if left < 0:
            raise ApiError(e.INSUFFICIENT_RESOURCES)
        if not other.policy.filters or any_collide(filters, other.policy.filters):
            return False
    return True


def info(api: Api, names: list[str], request: ApiRequest) -> Fields:
    forms.require_empty(request.payload)
    stream = api.stream(names[0])
    return _info(api, stream, api.consumer(stream, names[1]), request.now)


def _info(api: Api, stream: SequencedStream, consumer: Consumer, now: float) -> Fields:
    fields = consumer_fields(stream, consumer, now)
    return {**fields, "config": forms.with_server_version(fields["config"], api.version), **api.place}


def consumer_fields(stream: SequencedStream, consumer: Consumer, now: float) -> Fields:
    policy = consumer.policy
    fields: Fields = {
        "stream_name": stream.name,
        "name": consumer.name,
        "created": time_text(consumer.created),
        "config": msgspec.json.decode(consumer.config),
        "delivered": _place(consumer.delivered, consumer.last_delivered),
        "ack_floor": _place(consumer.ack_floor, consumer.last_acknowledged),
        "num_ack_pending": consumer.num_ack_pending(),
        "num_redelivered": consumer.num_redelivered(),
        "num_waiting": consumer.num_waiting(now),
        "num_pending": consumer.waiting_messages(),
    }
    if policy.deliver_to and consumer.push_bound:
        fields["push_bound"] = True
    if policy.paused_until > now:
        fields["paused"] = True
        fields["pause_remaining"] = nanoseconds(policy.paused_until - now)
    fields["ts"] = time_text(now)
    return fields


def _place(sequences: tuple[int, int], last: float) -> Fields:
    fields: Fields = {"consumer_seq": sequences[0], "stream_seq": sequences[1]}
    return {**fields, "last_active": time_text(last)} if last else fields


def infos(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, PageRequest)
    stream = api.stream(names[0])
    found, page = page_of(sorted(consumers_of(stream)), asked.offset, LIST_PAGE)
    shown = [consumer_fields(stream, consumers_of(stream)[name], request.now) for name in found]
    return {**page, "consumers": shown}


def names(api: Api, names: list[str], request: ApiRequest) -> Fields:
    asked = forms.optional(request.payload, PageRequest)
    found, page = page_of(sorted(consumers_of(api.stream(names[0]))), asked.offset, NAMES_PAGE)
    return {**page, "consumers": found}


def delete(api: Api, names: list[str], request: ApiRequest) -> Fields:
    forms.require_empty(request.payload)
    stream = api.stream(names[0])
    api.hub.delete_consumer(stream, api.consumer(stream, names[1]).name)
    api.advisories.tell("CONSUMER.DELETED", request.now, stream.name, names[1], action="delete")
    return {"success": True}


def pause(api: Api, names: list[str], request: ApiRequest) -> Fields:
    until = configs.checked_time(forms.optional(request.payload, PauseRequest).pause_until)
    stream = api.stream(names[0])
    config = configs.consumer_config_of(api.consumer(stream, names[1]).config)
    config.pause_until = time_text(time_of(until)) if until else ""
    config.metadata = forms.with_required_level(config.metadata, 1 if until else 0)
    consumer = api.hub.change_consumer(stream, names[1], *configs.made(config))
    _tell_of_pause(api, stream, consumer, request.now)
    left = consumer.policy.paused_until - request.now
    fields: Fields = {"paused": left > 0, "pause_until": time_text(consumer.policy.paused_until)}
    return {**fields, "pause_remaining": nanoseconds(left)} if left > 0 else fields


def _tell_of_pause(api: Api, stream: SequencedStream, consumer: Consumer, now: float) -> None:
    until = consumer.policy.paused_until
    fields = {"paused": until > now, "pause_until": time_text(until)}
    api.advisories.tell("CONSUMER.PAUSE", now, stream.name, consumer.name, **fields)


def unpin(api: Api, names: list[str], request: ApiRequest) -> Fields:
    """No consumer has groups of clients."""
    api.consumer(api.stream(names[0]), names[1])
    raise ApiError(e.INVALID_GROUP)


def reset(api: Api, names: list[str], request: ApiRequest) -> Fields:
    raise ApiError(e.INVALID_RESET, "not supported")


def next_message(api: Api, names: list[str], request: ApiRequest) -> None:
    """A pull request. The consumer answers it, with messages or a status."""
    stream = api.hub.streams.get(names[0])
    consumer = consumers_of(stream).get(names[1]) if stream is not None else None
    if stream is None or consumer is None:
        request.no_responders()
        return
    if request.reply:
        api.hub.pull(stream, consumer, request.reply, request.payload, request.requester)
