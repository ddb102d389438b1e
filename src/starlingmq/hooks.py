"""Hooks of an embedding program: which clients connect, what they may do, and how messages change.

Hooks are plain functions, or coroutines if they have to wait. A connection waits for its own hooks only. A hook that
raises, or returns an invalid value, refuses: a bug lets nothing through.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from starlingmq.core.context.ready import AUTHENTICATE, PUBLISH, Event, HookAnswer, HookQuestion
from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import BRIDGE_LISTENER, Client
from starlingmq.core.topics.topics import valid_topic
from starlingmq.log import SparingLog
from starlingmq.net.listeners.sockets import hung_up
from starlingmq.wire.properties import Properties, decode_property_bytes, encode_property_bytes
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq.hooks")

LINES_PER_SECOND: Final = 5


@dataclass(slots=True, frozen=True)
class AuthRequest:
    """A client that connects. ``method`` and ``data`` are those of enhanced authentication ("" and None without).

    ``version`` 0 is NATS, where a token comes as a password without a user name. ``nkey`` is the public key that a NATS
    client has proved to hold, which is also its user name; "" for others. ``again``: the client is connected and
    re-authenticates, keeping its client id. ``nkey_listed``: the key is one of ``nats.nkeys``. ``gone``: whether the
    client has disconnected meanwhile, so that the answer is not needed.
    """

    client_id: str
    username: str | None
    password: bytes | None
    version: int
    peer: str
    listener: str
    certificate_name: str
    method: str
    data: bytes | None
    properties: Properties
    nkey: str = ""
    again: bool = False
    nkey_listed: bool = False
    gone: Callable[[], bool] = field(default=bool, repr=False, compare=False)


@dataclass(slots=True, frozen=True)
class AuthResult:
    """``reason``: SUCCESS, CONTINUE_AUTHENTICATION (``data`` is sent in AUTH, and the hook is called with the client's
    answer), or a refusal. ``username`` renames the client for ``authorize`` and for the log. ``rights`` are its rights
    (None: what ``authorize`` allows, or everything), and ``valid`` the validity in seconds; 0 for as long as the
    connection. ``standing`` is the broker's note of the proof that the client has shown. ``detail`` explains a refusal
    in the log and to MQTT 5 clients."""

    reason: int = Reason.SUCCESS
    data: bytes | None = None
    username: str | None = None
    rights: Rights | None = None
    valid: float = 0.0
    standing: object = field(default=None, repr=False)
    detail: str = ""


@dataclass(slots=True, frozen=True)
class Access:
    """An access that a client requests: to a topic (publish) or a filter (subscribe)."""

    action: Literal["publish", "subscribe"]
    topic: str
    qos: int
    retain: bool
    client_id: str
    username: str
    peer: str


@dataclass(slots=True)
class Publication:
    """A message that a client publishes. ``on_publish`` may change ``topic``, ``payload``, ``retain`` and
    ``properties`` (MQTT 5, by property id; see ``starlingmq.wire.properties``) in place."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    username: str
    properties: Properties = field(default_factory=dict)


Authenticate = Callable[[AuthRequest], "bool | AuthResult | Awaitable[bool | AuthResult]"]
Authorize = Callable[[Access], "bool | Awaitable[bool]"]
OnPublish = Callable[[Publication], "bool | Awaitable[bool | None] | None"]
OnEvent = Callable[[Event], None]


class Hooks:
    """The hooks of one broker, and their answers to the questions of the core.

    ``timeout`` in seconds bounds how long a hook may wait (None: unlimited). ``on_publish`` drops the message by
    returning False; None or True accepts it as it is by then.
    """

    def __init__(
        self,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        on_publish: OnPublish | None = None,
        on_event: OnEvent | None = None,
        timeout: float | None = None,
        lines: SparingLog | None = None,
    ) -> None:
        self.authenticate = authenticate
        self.authorize = authorize
        self.on_publish = on_publish
        self.on_event = on_event
        self.timeout = timeout
        self._lines = lines or SparingLog(log, LINES_PER_SECOND)

    def ask(self, question: HookQuestion) -> HookAnswer | Awaitable[HookAnswer]:
        """The answer, or an awaitable of it if a hook has to wait. Never raises."""
        steps = self._steps(question)
        try:
            value = next(steps)
            while not inspect.isawaitable(value):
                value = steps.send(value)
        except StopIteration as stop:
            answer: HookAnswer = stop.value
            return answer
        except Exception as error:
            return self._refusal(question, error)
        return self._wait(question, steps, value)

    async def _wait(self, question: HookQuestion, steps: Any, value: Any) -> HookAnswer:
        try:
            async with asyncio.timeout(self.timeout) as bound:
                while True:
                    value = steps.send(await value if inspect.isawaitable(value) else value)
        except StopIteration as stop:
            answer: HookAnswer = stop.value
            return answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the broker stops
            return self._refusal(question, error)  # an awaitable of the hook was cancelled
        except TimeoutError as error:
            if bound.expired():
                return self._too_slow(question)
            return self._refusal(question, error)
        except Exception as error:
            return self._refusal(question, error)

    def _refusal(self, question: HookQuestion, error: BaseException) -> HookAnswer:
        self._lines.warning("a hook failed, so the operation that waited for it is refused; fix the hook", error=error)
        reason = Reason.UNSPECIFIED_ERROR if question.kind == AUTHENTICATE else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        return HookAnswer(reason, reasons=[reason] * len(question.requests))

    def _too_slow(self, question: HookQuestion) -> HookAnswer:
        client = question.client
        what = {AUTHENTICATE: "authentication", PUBLISH: "a message"}.get(question.kind, "subscriptions")
        self._lines.warning(
            "client %r at %s: the hook for %s did not return within %g s (limits.hook_timeout), so the "
            "request is refused",
            client.client_id,
            client.peer,
            what,
            self.timeout,
        )
        reason = Reason.SERVER_BUSY if question.kind == AUTHENTICATE else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        return HookAnswer(reason, reasons=[reason] * len(question.requests))

    # Generators that yield what a hook returned and receive its value: the same code for both kinds of hooks.

    def _steps(self, question: HookQuestion) -> Any:
        if question.kind == AUTHENTICATE:
            return self._authenticate(question)
        if question.kind == PUBLISH:
            return self._publish(question)
        return self._subscribe(question)

    def _authenticate(self, question: HookQuestion) -> Any:
        if self.authenticate is None:
            return HookAnswer(Reason.SUCCESS)
        client = question.client
        connect = question.connect
        request = AuthRequest(
            client.client_id,
            client.username if connect is None or client.identity else connect.username,
            connect.password if connect is not None else None,
            client.version,
            client.peer,
            client.listener,
            client.certificate_name,
            question.method,
            question.data,
            connect.properties if connect is not None else {},
            question.nkey,
            connect is None,
            question.listed,
            partial(_gone, client),
        )
        result = yield self.authenticate(request)
        if isinstance(result, AuthResult):
            if result.reason == Reason.CONTINUE_AUTHENTICATION and not question.method:
                raise ValueError(
                    "authenticate: AUTH is only for clients that named an authentication method in CONNECT"
                )
            answer = HookAnswer(result.reason, result.data, result.username)
            answer.rights = result.rights
            answer.valid = result.valid
            answer.standing = result.standing
            answer.detail = result.detail
            return answer
        return HookAnswer(Reason.SUCCESS if result else Reason.NOT_AUTHORIZED)

    def _publish(self, question: HookQuestion) -> Any:
        message = question.message
        assert message is not None
        client = question.client
        if self.authorize is not None and client.listener != BRIDGE_LISTENER:
            allowed = yield self.authorize(_access("publish", client, message.topic, message.qos, message.retain))
            if not allowed:
                return HookAnswer(Reason.NOT_AUTHORIZED)
        if self.on_publish is None:
            return HookAnswer(message=message)
        publication = Publication(
            message.topic.decode(),
            message.payload,
            message.qos,
            message.retain,
            client.client_id,
            client.username,
            decode_property_bytes(message.properties) if message.properties else {},
        )
        kept = yield self.on_publish(publication)
        return HookAnswer(message=None if kept is False else _changed(message, publication))

    def _subscribe(self, question: HookQuestion) -> Any:
        reasons: list[int] = []
        for request in question.requests:
            allowed = True
            if self.authorize is not None and question.client.listener != BRIDGE_LISTENER:
                allowed = yield self.authorize(
                    _access("subscribe", question.client, request.filter, request.qos, False)
                )
            reasons.append(Reason.SUCCESS if allowed else Reason.NOT_AUTHORIZED)
        return HookAnswer(reasons=reasons)


def _access(action: Literal["publish", "subscribe"], client: Client, topic: bytes, qos: int, retain: bool) -> Access:
    return Access(action, topic.decode(), qos, retain, client.client_id, client.username, client.peer)


def _changed(message: Message, publication: Publication) -> Message:
    topic = publication.topic.encode()
    if not valid_topic(topic):
        raise ValueError(f"on_publish: {publication.topic!r} is not a valid topic")
    if not isinstance(publication.payload, bytes):
        raise TypeError(f"on_publish: the payload must be bytes, not {type(publication.payload).__name__}")
    properties = b""
    if publication.properties:
        properties = encode_property_bytes(publication.properties)
    return Message(
        topic,
        publication.payload,
        message.qos,
        publication.retain,
        properties,
        message.expires_at,
        message.publisher,
        message.published_at,
    )


def _gone(client: Client) -> bool:
    return client.state == CLOSED or client.transport is None or hung_up(client.transport)
