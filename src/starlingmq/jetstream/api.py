"""Requests to ``$JS.API.>``: which handler answers which subject, and the answers that are the same for all.

::

    subject, payload --ROUTES--> handler --> fields --> {"type": ..., fields}
                             |           --> ApiError --> {"type": ..., "error": {code, err_code, description}}
                             |           --> None: it has sent messages, or a status, to the reply subject
                             --> no such request: "bad request"

Requests that nats-server serves only in its own kind of cluster get the error that they get from a single server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from starlingmq.core.nats.jetstream_port import API_LEVEL
from starlingmq.jetstream import consumer_api, message_api, stream_api
from starlingmq.jetstream.api_errors import (
    BAD_REQUEST,
    CLUSTER_REQUIRED,
    REQUIRED_API_LEVEL,
    STREAM_RESTORE,
    STREAM_SNAPSHOT,
    ApiError,
)
from starlingmq.jetstream.api_requests import Api, ApiRequest
from starlingmq.jetstream.api_rights import check_rights
from starlingmq.jetstream.usage import counts, usage

PREFIX: Final = "$JS.API."
TYPE: Final = "io.nats.jetstream.api.v1."
MANY: Final = 1 << 30
LIMITS: Final = {
    "max_memory": -1,
    "max_storage": -1,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": -1,
    "max_bytes_required": False,
}

Fields = dict[str, Any]
Handler = Callable[[Api, list[str], ApiRequest], Fields | None]


class ApiRoute(NamedTuple):
    kind: str
    handler: Handler
    least: int = 0  # tokens after the name of the request
    most: int = 0
    with_error: Fields | None = None  # fields that nats-server answers beside an error


def account_info(api: Api, names: list[str], request: ApiRequest) -> Fields:
    streams = list(api.hub.streams.values())
    return {
        **usage(streams),
        **counts(streams),
        "limits": LIMITS,
        "api": {"level": API_LEVEL, "total": api.total, "errors": api.errors},
    }


def _refuses(kind: Any, detail: str = "") -> Handler:
    def handler(api: Api, names: list[str], request: ApiRequest) -> Fields:
        raise ApiError(kind, detail)

    return handler


_PAGE: Final = {"total": 0, "offset": 0, "limit": 0}
_NOT: Final = "not supported"
_ALONE: Final = _refuses(CLUSTER_REQUIRED)
ROUTES: Final[dict[str, ApiRoute]] = {
    "INFO": ApiRoute("account_info", account_info),
    "STREAM.CREATE": ApiRoute("stream_create", stream_api.create, 1, 1),
    "STREAM.UPDATE": ApiRoute("stream_update", stream_api.update, 1, 1),
    "STREAM.INFO": ApiRoute("stream_info", stream_api.info, 1, 1, _PAGE),
    "STREAM.LIST": ApiRoute("stream_list", stream_api.infos, 0, 0, {**_PAGE, "streams": []}),
    "STREAM.NAMES": ApiRoute("stream_names", stream_api.names, 0, 0, {**_PAGE, "streams": None}),
    "STREAM.DELETE": ApiRoute("stream_delete", stream_api.delete, 1, 1),
    "STREAM.PURGE": ApiRoute("stream_purge", stream_api.purge, 1, 1, {"purged": 0}),
    "STREAM.MSG.GET": ApiRoute("stream_msg_get", message_api.get, 1, 1),
    "STREAM.MSG.DELETE": ApiRoute("stream_msg_delete", message_api.delete, 1, 1),
    "STREAM.SNAPSHOT": ApiRoute("stream_snapshot", _refuses(STREAM_SNAPSHOT, "not supported"), 1, 1),
    "STREAM.RESTORE": ApiRoute(
        "stream_restore", _refuses(STREAM_RESTORE, "not supported"), 1, 1, {"deliver_subject": ""}
    ),
    "STREAM.PEER.REMOVE": ApiRoute("stream_remove_peer", _ALONE, 1, 1),
    "STREAM.PEER.EVACUATE": ApiRoute("stream_evacuate_peer", _ALONE, 1, 1),
    "STREAM.CANCEL_MOVE": ApiRoute("stream_cancel_move", _ALONE, 1, 1),
    "STREAM.LEADER.STEPDOWN": ApiRoute("stream_leader_stepdown", _ALONE, 1, 1),
    "DIRECT.GET": ApiRoute("stream_msg_get", message_api.direct_get, 1, MANY),
    "CONSUMER.CREATE": ApiRoute("consumer_create", consumer_api.create, 1, MANY),
    "CONSUMER.DURABLE.CREATE": ApiRoute("consumer_create", consumer_api.create_durable, 2, 2),
    "CONSUMER.INFO": ApiRoute("consumer_info", consumer_api.info, 2, 2),
    "CONSUMER.LIST": ApiRoute("consumer_list", consumer_api.infos, 1, 1, {**_PAGE, "consumers": []}),
    "CONSUMER.NAMES": ApiRoute("consumer_names", consumer_api.names, 1, 1, {**_PAGE, "consumers": []}),
    "CONSUMER.DELETE": ApiRoute("consumer_delete", consumer_api.delete, 2, 2),
    "CONSUMER.PAUSE": ApiRoute("consumer_pause", consumer_api.pause, 2, 2, consumer_api.NOT_PAUSED),
    "CONSUMER.UNPIN": ApiRoute("consumer_unpin", consumer_api.unpin, 2, 2),
    "CONSUMER.RESET": ApiRoute("consumer_reset", consumer_api.reset, 2, 2, {"reset_seq": 0}),
    "CONSUMER.MSG.NEXT": ApiRoute("consumer_msg_next", consumer_api.next_message, 2, 2),
    "CONSUMER.LEADER.STEPDOWN": ApiRoute("consumer_leader_stepdown", _ALONE, 2, 2),
    "CONSUMER.PEER.REMOVE": ApiRoute("consumer_remove_peer", _ALONE, 2, 2),
    "CONSUMER.PEER.EVACUATE": ApiRoute("consumer_evacuate_peer", _ALONE, 2, 2),
    "META.LEADER.STEPDOWN": ApiRoute("meta_leader_stepdown", _ALONE),
    "META.RESCUE": ApiRoute("meta_rescue", _ALONE),
    "SERVER.REMOVE": ApiRoute("meta_server_remove", _ALONE),
    "SERVER.EVACUATE": ApiRoute("meta_server_evacuate", _ALONE),
    "ACCOUNT.PURGE": ApiRoute("account_purge", _ALONE, 1, 1),
    "ACCOUNT.STREAM.MOVE": ApiRoute("stream_update", _ALONE, 2, 2),
    "ACCOUNT.STREAM.CANCEL_MOVE": ApiRoute("stream_update", _ALONE, 2, 2),
}
UNKNOWN: Final = ApiRoute("system", _refuses(BAD_REQUEST))
STATUSES: Final = (message_api.direct_get, consumer_api.next_message)  # their answers are messages
CHANGING: Final = (
    *(stream_api.create, stream_api.update, stream_api.delete, stream_api.purge, message_api.delete),
    *(consumer_api.create, consumer_api.create_durable, consumer_api.delete, consumer_api.pause),
)
NOT_COUNTED: Final = (*STATUSES, message_api.get)
"""In ``api`` of INFO, as long as they succeed."""


ABOUT_STREAMS: Final = frozenset(
    [
        route.handler
        for name, route in ROUTES.items()
        if name.startswith(("STREAM.", "CONSUMER.", "DIRECT.")) and route.least
    ]
)
"""The name of a stream is the first token after that of the request."""


def route_of(tokens: list[str]) -> tuple[ApiRoute, list[str]]:
    """And the tokens after the name of the request."""
    for length in (3, 2, 1):
        route = ROUTES.get(".".join(tokens[:length]))
        if route is not None and route.least <= len(tokens) - length <= route.most:
            return route, tokens[length:]
    return UNKNOWN, []


def changes(subject: str) -> bool:
    """Whether the answer to this request says that something was changed, which is to be stored before."""
    return route_of(subject.removeprefix(PREFIX).split("."))[0].handler in CHANGING


def answer(api: Api, request: ApiRequest) -> bytes | None:
    """The JSON that goes to the reply subject; None: the handler has answered with messages, or nothing listens. Raises
    NotAllowedError."""
    route, names = route_of(request.subject.removeprefix(PREFIX).split("."))
    try:
        if request.headers and message_api.requires_higher_level(request.headers):
            if route.handler in STATUSES:
                message_api.status(request, "412 Required Api Level")
                return None
            raise ApiError(REQUIRED_API_LEVEL)
        check_rights(api, route.handler, names, request)
        fields = route.handler(api, names, request)
    except ApiError as error:
        return refused(api, route, error)
    if route.handler not in NOT_COUNTED:
        api.total += 1
    return None if fields is None else answered(route, fields)


def answered(route: ApiRoute, fields: Fields) -> bytes:
    return msgspec.json.encode({"type": f"{TYPE}{route.kind}_response", **fields})


def refused(api: Api, route: ApiRoute, error: ApiError) -> bytes:
    api.total += 1
    api.errors += 1
    return answered(route, {"error": error.fields(), **(route.with_error or {})})
