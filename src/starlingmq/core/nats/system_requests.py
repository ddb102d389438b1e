"""Requests to ``$SYS.REQ.>``: who may send them, which ones exist, and who receives the answers.

::

    PUB --take: allowed--> Ready.requests --> admin.nats_answers --answer, once for each node--> close

Invariant:

- A client may ask about itself (``$SYS.REQ.USER.INFO``). It may ask about servers and accounts only if it has proved
  its identity, and a rule that names ``$SYS/REQ`` allows it to publish there (``Rights.may_ask``).
- An answer goes to subscriptions of the requesting connection only: the requester chooses the reply subject, so an
  answer of the broker must not go where the requester could not publish.
- At most ``CLIENT_MAX`` requests of a client, and ``NODE_MAX`` of all clients of a node, are open at once.

Requests to JetStream's API (``$JS.API.>``) that have no receivers get the error that JetStream is not enabled, where it
is not (``core.nats.jetstream_port``). Those that ask for a message get the status 503 like any other request: their
answers are messages, not JSON.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.no_responders import SEARCH_SHIFT, send_no_responders
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import OPEN
from starlingmq.core.session.session import Client
from starlingmq.wire.reasons import MqttError

CLIENT_MAX: Final = 16
NODE_MAX: Final = 32  # no more than other nodes answer at once (cluster: ``SERVED_MAX``)

PREFIX: Final = b"$SYS/REQ/"
USER_INFO: Final = b"$SYS/REQ/USER/INFO"
PING: Final = b"PING"  # in place of a server or an account: all of them
ACCOUNT: Final = b"$G"  # nats-server's name for the account that exists where none are configured

SERVER_KINDS: Final = frozenset((b"STATSZ", b"IDZ", b"VARZ", b"CONNZ", b"SUBSZ", b"HEALTHZ", b"ACCOUNTZ", b"JSZ"))
ACCOUNT_KINDS: Final = frozenset((b"CONNZ", b"SUBSZ", b"STATZ"))

JETSTREAM: Final = b"$JS/API/"
NO_JETSTREAM: Final = (
    b'{"type":"io.nats.jetstream.api.v1.%b_response","error":{"code":503,"err_code":10076,'
    b'"description":"JetStream not enabled: members of a cluster do not have it yet"}}'
)
FOR_MESSAGES: Final = (b"$JS/API/CONSUMER/MSG/NEXT/", b"$JS/API/DIRECT/GET")
KIND_MAX: Final = 32  # bytes of a kind of request: longer ones do not exist

BUSY: Final = b'{"server":{},"error":{"code":503,"description":"too many requests are open"}}'


class SystemRequests:
    ctx: Context
    router: Router
    open: int  # open requests about servers and accounts

    def __init__(self, ctx: Context, router: Router) -> None:
        self.ctx = ctx
        self.router = router
        self.open = 0

    def take(self, client: Client, nats: NatsClient, message: Message, reply: bytes) -> bool:
        """A message to a topic of the broker itself. Returns whether it is a request that this client may send."""
        topic = message.topic
        if not topic.startswith(PREFIX) or not reply:
            return False
        rights = client.rights
        if topic != USER_INFO and (rights is None or not rights.may_ask(topic)):
            return False
        nats.ok(client)
        request = _read(client, topic, reply, message.payload)
        if request is None:
            if nats.no_responders:
                send_no_responders(self.ctx, self.router, client, reply)
        elif nats.requests >= CLIENT_MAX or (request.kind != "USER" and self.open >= NODE_MAX):
            self._deliver(client, reply, BUSY)
        else:
            nats.requests += 1
            if request.kind != "USER":
                self.open += 1
            self.ctx.ready.requests.append(request)
        return True

    def answer(self, request: SystemRequest, data: bytes, now: float) -> None:
        """The answer of one node."""
        self.ctx.now = now
        request.answered = True
        self._deliver(request.client, request.reply, data)

    def close(self, request: SystemRequest, now: float) -> None:
        """All answers have arrived."""
        self.ctx.now = now
        client = request.client
        nats = cast(NatsClient, client.protocol_handler)
        nats.requests -= 1
        if request.kind != "USER":
            self.open -= 1
        if not request.answered and nats.no_responders and client.state == OPEN:
            send_no_responders(self.ctx, self.router, client, request.reply)

    def refuse_jetstream(self, client: Client, topic: bytes, reply: bytes) -> None:
        """The error's code is that of nats-server (JSNotEnabledErr)."""
        levels = topic[len(JETSTREAM) :].lower().split(b"/", 3)[:3]
        if levels[0] == b"info":
            levels = [b"account", b"info"]
        elif levels[1:2] == [b"durable"]:  # CONSUMER.DURABLE.CREATE
            del levels[1]
        elif levels[1:2] != [b"msg"] and levels[1:2] != [b"leader"]:  # STREAM.MSG.GET, STREAM.LEADER.STEPDOWN
            del levels[2:]
        kind = b"_".join(levels)
        known = len(kind) <= KIND_MAX and kind.replace(b"_", b"").isalpha()
        self._deliver(client, reply, NO_JETSTREAM % (kind if known else b"unknown"))

    def _deliver(self, client: Client, reply: bytes, data: bytes) -> None:
        session = client.session
        handler = client.protocol_handler
        if client.state != OPEN or session is None or handler is None:
            return
        try:
            route = self.router.resolve(reply)
        except MqttError:
            return
        self.ctx.work -= len(route.subscriptions) >> SEARCH_SHIFT
        message = Message(reply, data, 0, False, b"", 0.0, "", self.ctx.now)
        for subscription in list(route.subscriptions):  # a subscription that reaches its limit is removed from the list
            if subscription.session is session:
                handler.deliver(client, message, subscription, None)


def _read(client: Client, topic: bytes, reply: bytes, options: bytes) -> SystemRequest | None:
    """None: there is no such request."""
    if topic == USER_INFO:
        return SystemRequest(client, "USER", "", reply, b"")
    levels = topic.split(b"/")[2:]
    if levels == [b"SERVER", PING]:
        return SystemRequest(client, "STATSZ", "", reply, options)
    if len(levels) != 3:
        return None
    about, which, kind = levels
    if about == b"SERVER" and kind in SERVER_KINDS:
        server = "" if which == PING else which.decode()
        return SystemRequest(client, kind.decode(), server, reply, options)
    if about == b"ACCOUNT" and kind in ACCOUNT_KINDS and which in (PING, ACCOUNT):
        return SystemRequest(client, kind.decode(), "", reply, options)
    return None
