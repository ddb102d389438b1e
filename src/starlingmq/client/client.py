"""The asyncio shell around the client state machine: it feeds bytes, writes, re-arms one timer and delivers results.

Flow control, so that nothing grows without bound: ``publish`` waits for the acknowledgement (QoS 1 and 2) or for room
in the socket (QoS 0). With ``UNREAD_MAX`` messages not read from ``messages()`` the client stops reading the socket,
unless the application waits for an answer, which arrives through that socket; in that case withheld acknowledgements
slow the server down, and QoS 0 messages above ``UNREAD_LIMIT`` are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from starlingmq.client.client_topics import check_filter, levels_of, matches
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Tls, parse_url, referred
from starlingmq.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    PublishFailed,
    SubscribeFailed,
    explain,
)
from starlingmq.client.events import Challenged, Completed, Connected, Ended, Event, Message, Refused
from starlingmq.client.inquiries import Inquiries
from starlingmq.client.link import Link, Owner
from starlingmq.client.options import V5, V31, ConnectFields, ConnectOptions, Qos, Subscription
from starlingmq.client.requests import RENEWED
from starlingmq.client.state import CONNECTED, ClientState
from starlingmq.wire.properties import CORRELATION_DATA, RESPONSE_TOPIC, SERVER_REFERENCE, Properties
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq.client")

UNREAD_MAX: Final = 1000
UNREAD_LIMIT: Final = 10_000
WRITE_BATCH: Final = 64 * 1024  # most bytes collected before they are written to the socket within a turn of the loop
CLOSE_PATIENCE: Final = 2.0  # seconds for the last bytes to go out, and for the broker to close
BACKOFF: Final = (0.2, 30.0)  # seconds before the first reconnection attempt, and at most

ELSEWHERE: Final = frozenset({Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED})
# A reconnection would get the same answer, or would compete with the client that took the session over.
FINAL_REASONS: Final = frozenset(
    {
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.NOT_AUTHORIZED,
        Reason.BANNED,
        Reason.BAD_AUTHENTICATION_METHOD,
        Reason.SESSION_TAKEN_OVER,
    }
)

Watch = Callable[[bool, bytes], None]
Authenticator = Callable[[int, Properties], Properties]


class UnreadMessages:
    """One generator of ``messages``. ``levels``: of its filter."""

    def __init__(self, levels: list[str]) -> None:
        self.levels = levels
        self.unread: deque[Message] = deque()
        self.arrived = asyncio.Event()


class Client:
    """An MQTT client: ``async with Client("mqtt://localhost", client_id="me") as client: ...``.

    ``url`` is mqtt://, mqtts://, ws://, wss:// or unix://, with ``user:password@`` if need be; or a host, with its
    ``port``: ``Client("localhost", 1883)``. The other arguments are the fields of ``ConnectOptions``. ``reconnect``:
    reconnect after a lost connection, resend everything unanswered and renew all subscriptions; when a node does not
    answer, try the next of ``others`` (URLs of nodes of the same cluster; user and password are those of ``url``).
    ``watch(sent, data)`` sees every byte; ``authenticator(reason, properties)`` answers the challenges of an enhanced
    authentication with the properties to send back. Entering raises ConnectFailed.
    """

    def __init__(
        self,
        url: str = "mqtt://localhost",
        port: int | None = None,
        *,
        tls: Tls | None = None,
        reconnect: bool = False,
        others: Sequence[str] = (),
        watch: Watch | None = None,
        authenticator: Authenticator | None = None,
        **fields: Unpack[ConnectFields],
    ) -> None:
        self._home = self.endpoint = parse_url(url, port)
        self._others = deque(map(parse_url, others))
        if fields.get("username") is None and self.endpoint.username is not None:
            fields["username"] = self.endpoint.username
            fields["password"] = None if self.endpoint.password is None else self.endpoint.password.encode()
        if fields.get("version") == V31 and not fields.get("client_id"):
            fields["client_id"] = f"starling-{secrets.token_hex(6)}"
        self.state = ClientState(ConnectOptions(**fields))
        self.dropped = 0  # QoS 0 messages dropped because the application read too slowly
        self.session_present = False
        self._tls = tls or Tls()
        self._reconnect = reconnect
        self._watch = watch
        self._authenticator = authenticator
        self._link: Link | None = None
        self._accepted: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Completed]] = {}
        self._main = UnreadMessages([])
        self._readers: list[UnreadMessages] = []  # of ``messages`` with a filter, in the order in which they began
        self._unread = 0
        self._inquiries = Inquiries()
        self._reading = True
        self._leaving = False
        self._over: ClientError | None = None  # set when the client has ended
        self._why: ClientError | None = None  # the reason why the current connection ended
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._flushing = False
        self._comeback: asyncio.Task[None] | None = None

    # Connecting

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect and wait for CONNACK. Raises ConnectFailed, and ConnectRefused for a refusal by the server."""
        timeout = self.state.options.connect_timeout
        self._why = None
        try:
            async with asyncio.timeout(timeout):
                self._link = await open_link(self.endpoint, self._tls, self)
        except TimeoutError:
            raise ConnectFailed(f"no answer from {self.endpoint} within {timeout:g} s") from None
        try:
            await self._greet()
        except BaseException:
            self._link.close()
            raise
        if not self.connected:  # CONNACK and the end arrived in one read
            raise ConnectFailed(str(self._why or "the connection was lost immediately"))

    async def _greet(self) -> None:
        loop = asyncio.get_running_loop()
        self._accepted = loop.create_future()
        self._reading = True
        self.state.connection_made(loop.time())
        self._flush()
        try:
            await self._accepted
        finally:
            self._accepted = None

    async def disconnect(self, reason: int = Reason.SUCCESS, properties: Properties | None = None) -> None:
        """Send DISCONNECT, and wait until the broker has read everything and closed. Safe to call twice."""
        self._leaving = True
        if self._comeback is not None:
            self._comeback.cancel()
        self.state.disconnect(reason, properties)
        self._flush()
        link = self._link
        if link is not None:
            link.end(CLOSE_PATIENCE)
            await asyncio.shield(link.closed)
        self._finish(ConnectionLost("disconnected"))

    def hand_over(self, owner: Owner) -> tuple[Link, bytes]:
        """Give the open connection to ``owner``, and what has arrived of the next frame. The client itself ends."""
        self._check_open()
        assert self._link is not None
        link, rest = self._link, self.state.hand_over()
        link.owner, self._link = owner, None
        self._arm()
        self._finish(ConnectionLost("the connection was handed over"))
        link.set_reading(True)  # it may have paused, because of messages that were not read
        return link, rest

    @property
    def unread(self) -> int:
        """Messages that have arrived and were not read from ``messages()``."""
        return self._unread

    @property
    def connected(self) -> bool:
        return self.state.phase == CONNECTED

    # Sending

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: Qos = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish, and wait until the server has acknowledged it (QoS 0: until the socket accepts it).

        Returns the reason code of the acknowledgement, below 0x80. Raises PublishFailed, ConnectionLost, ValueError.
        """
        answer = self.publish_soon(topic, payload, qos, retain, properties)
        if self.state.unwritten >= WRITE_BATCH:
            self._flush()
            await asyncio.sleep(0)  # a publisher in a loop must yield to other tasks
        if self._link is not None:
            await self._link.drained()
        return acknowledged(topic, await answer)

    def publish_soon(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: Qos = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> asyncio.Future[Completed]:
        """Publish without waiting, so that several messages are in flight. Pass the result to ``acknowledged``.

        Bounded by ``max_queued`` (ValueError).
        """
        self._check_open()
        body = payload.encode() if isinstance(payload, str) else payload
        return self._answer(self.state.publish(topic, body, qos, retain, properties))

    async def subscribe(
        self,
        filters: str | Subscription | Sequence[str | Subscription],
        qos: Qos = 0,
        properties: Properties | None = None,
    ) -> list[int]:
        """Subscribe, wait for SUBACK and return the granted QoS per filter. ``qos`` applies to plain strings.

        Raises SubscribeFailed when the server refuses at least one (the others are in effect), ConnectionLost,
        ValueError.
        """
        self._check_open()
        wanted = [filters] if isinstance(filters, str | Subscription) else list(filters)
        lines = [Subscription(filter=each, qos=qos) if isinstance(each, str) else each for each in wanted]
        completed = await self._answer(self.state.subscribe(lines, properties))
        if any(reason >= 0x80 for reason in completed.reasons):
            raise SubscribeFailed([each.filter for each in lines], completed.reasons)
        return completed.reasons

    async def unsubscribe(self, filters: str | Sequence[str], properties: Properties | None = None) -> list[int]:
        """Unsubscribe and return a reason code per filter; none in 3.x."""
        self._check_open()
        names = [filters] if isinstance(filters, str) else list(filters)
        return (await self._answer(self.state.unsubscribe(names, properties))).reasons

    async def flush(self) -> None:
        """Wait until every request made so far is answered."""
        self._flush()
        if self._answers:
            await asyncio.wait(list(self._answers.values()))
        if self._link is not None:
            await self._link.drained()

    def _answer(self, token: int) -> asyncio.Future[Completed]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completed] = loop.create_future()
        self._answers[token] = future
        self._deliver(self.state.events())
        self._set_reading()
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        return future

    # Receiving

    def messages(self, topic_filter: str = "") -> AsyncGenerator[Message, None]:
        """Yield messages until ``disconnect``; each is acknowledged when it is yielded.

        With a filter, those that it matches, from this call on: each message goes to the first such generator that
        matches it, and all others to the one without a filter. What a generator has not yielded when it ends goes
        there, too. This subscribes to nothing. Raises ValueError for a filter that is none, and ConnectionLost when the
        connection ends in another way and ``reconnect`` is off.
        """
        if not topic_filter:
            return self._read(self._main)
        check_filter(topic_filter)
        reader = UnreadMessages(levels_of(topic_filter))
        self._readers.append(reader)
        generator = self._read(reader)
        weakref.finalize(generator, self._give_up, reader).atexit = False  # also of one that never began
        return generator

    async def _read(self, reader: UnreadMessages) -> AsyncGenerator[Message, None]:
        try:
            while True:
                while reader.unread:
                    self._unread -= 1
                    yield self._taken(reader.unread.popleft())
                if self._over is not None:
                    if not self._leaving:
                        raise self._over
                    return
                reader.arrived.clear()
                await reader.arrived.wait()
        finally:
            self._give_up(reader)

    def _give_up(self, reader: UnreadMessages) -> None:
        """Its generator has ended."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._main.unread += reader.unread
            self._main.arrived.set()

    def _taken(self, message: Message) -> Message:
        self.state.taken(message)
        self._set_reading()
        if self.state.unwritten and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        return message

    # Requests and replies

    async def request(
        self,
        topic: str,
        payload: bytes | str = b"",
        timeout: float = 10.0,
        qos: Qos = 1,
        properties: Properties | None = None,
    ) -> Message:
        """Publish a request and wait for its reply (MQTT 5, 4.10): the one that its receiver publishes to the Response
        Topic, with the same Correlation Data. ``timeout`` in seconds. The client subscribes once to a topic of its own
        for all replies, ``replies/`` and random characters, which rules have to allow. As any message, a reply waits
        while ``receive_maximum`` messages are not read.

        Raises TimeoutError, PublishFailed (also if the server knows of no subscriber), SubscribeFailed, ConnectionLost,
        ValueError.
        """
        if self.state.options.version != V5:
            raise ValueError("requests with a reply need MQTT 5")
        async with asyncio.timeout(timeout):
            async with self._inquiries.beginning:
                if not self._inquiries.subscribed:
                    await self.subscribe(self._inquiries.topic, qos=1)
                    self._inquiries.subscribed = True
            correlation, reply = self._inquiries.begin()
            try:
                asked: Properties = {
                    **(properties or {}),
                    RESPONSE_TOPIC: self._inquiries.topic,
                    CORRELATION_DATA: correlation,
                }
                reason = await self.publish(topic, payload, qos, properties=asked)
                if reason == Reason.NO_MATCHING_SUBSCRIBERS:
                    raise PublishFailed(f"there is no subscriber of {topic} to answer a request", reason)
                return await reply
            finally:
                self._inquiries.end(correlation)

    # Calls from the link

    def link_received(self, data: bytes) -> None:
        if self._watch is not None:
            self._watch(False, data)
        self._deliver(self.state.receive(data, asyncio.get_running_loop().time()))
        self._flush()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        if link is not self._link:
            return  # MQTT was never connected
        self.state.connection_lost()
        self._arm()
        detail = f": {error}" if error else ""
        why = self._why or ConnectionLost(f"connection to {self.endpoint} lost{detail}")
        if self._accepted is not None and not self._accepted.done():
            if self._why is None and not self._leaving:
                why = ConnectFailed(f"{self.endpoint} ended the connection before CONNACK{detail}{self.state.doubt()}")
            self._accepted.set_exception(why if isinstance(why, ConnectFailed) else ConnectFailed(str(why)))
        if self._accepted is not None:
            return  # connect() reports it
        if self._leaving or self._comeback is not None:
            return  # disconnect() finishes, or the reconnection retries by itself
        if self._reconnect and why.reason not in FINAL_REASONS:
            self._comeback = asyncio.get_running_loop().create_task(self._come_back())
        else:
            self._finish(why)

    async def _come_back(self) -> None:
        delay, longest = BACKOFF
        while True:
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 no secret  # nosec B311
            try:
                await self.connect()
            except ConnectFailed as error:
                log.warning("reconnecting: %s", error)
                if error.reason in FINAL_REASONS:
                    self._comeback = None
                    self._finish(ConnectionLost(str(error), error.reason))
                    return
                delay = min(delay * 2, longest)
                if error.reason not in ELSEWHERE:
                    self._go_on()
            else:
                self._comeback = None
                return

    def _go_on(self) -> None:
        """The current server does not answer: return to ``url`` after a server reference, else try the next of
        ``others``.
        """
        if self.endpoint is self._home and self._others:
            self._others.append(self._home)
            self._home = self._others.popleft()
        self.endpoint = self._home

    def _finish(self, why: ClientError) -> None:
        """End the client: every waiting call raises."""
        if self._over is None:
            self._over = why
        for future in self._answers.values():
            if not future.done():
                future.set_exception(why)
                future.exception()  # marks it as retrieved: a caller need not await it
        self._answers.clear()
        self._inquiries.fail(why)
        for reader in (self._main, *self._readers):
            reader.arrived.set()

    def _check_open(self) -> None:
        if self._over is not None:
            raise self._over
        if self._link is None:
            raise ConnectionLost("not connected yet: use `async with` or connect()")

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self._on_message(event)
            elif isinstance(event, Completed):
                self._on_completed(event)
            elif isinstance(event, Connected):
                self.session_present = event.session_present
                self._accept()
            elif isinstance(event, Refused):
                self._note_reference(event.properties)
                self._end(ConnectRefused(event.reason, event.properties))
            elif isinstance(event, Challenged):
                self._on_challenge(event)
            else:
                self._note_reference(event.properties)
                self._on_ended(event)

    def _note_reference(self, properties: Properties) -> None:
        """Follow a Server Reference (MQTT 5, 4.11): the next attempt goes there, with the same scheme."""
        reference = properties.get(SERVER_REFERENCE)
        if self._reconnect and isinstance(reference, str):
            self.endpoint = referred(self._home, reference) or self.endpoint

    def _on_message(self, message: Message) -> None:
        if self._inquiries.subscribed and message.topic == self._inquiries.topic:
            self._inquiries.came(self._taken(message))
            return
        if message.qos == 0 and self._unread >= UNREAD_LIMIT:
            self.dropped += 1
            return
        reader = next((each for each in self._readers if matches(each.levels, message.topic)), self._main)
        reader.unread.append(message)
        reader.arrived.set()
        self._unread += 1
        self._set_reading()

    def _on_completed(self, completed: Completed) -> None:
        if completed.token == RENEWED:
            for reason in completed.reasons:
                if reason >= 0x80:
                    log.warning(
                        "a subscription could not be renewed after reconnecting: %s",
                        explain(reason, completed.properties),
                    )
            return
        future = self._answers.pop(completed.token, None)
        if future is not None and not future.done():
            future.set_result(completed)

    def _on_challenge(self, event: Challenged) -> None:
        if self._authenticator is None:
            self._end(
                ConnectFailed(
                    "the server requires enhanced authentication, which this client does not support",
                    Reason.BAD_AUTHENTICATION_METHOD,
                )
            )
            return
        self.state.authenticate(Reason.CONTINUE_AUTHENTICATION, self._authenticator(event.reason, event.properties))

    def _on_ended(self, event: Ended) -> None:
        self._end(ConnectionLost(event.detail, event.reason))

    def _end(self, why: ClientError) -> None:
        self._why = why
        self._flush()
        if self._link is not None:
            self._link.close()

    def _accept(self) -> None:
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    def _set_reading(self) -> None:
        reading = self._unread < UNREAD_MAX or bool(self._answers) or self._inquiries.waits()
        if reading != self._reading and self._link is not None:
            self._reading = reading
            self._link.set_reading(reading)

    # Writing and time

    def _flush(self) -> None:
        self._flushing = False
        data = self.state.take(asyncio.get_running_loop().time())
        if data and self._link is not None:
            if self._watch is not None:
                self._watch(True, data)
            self._link.write(data)
        self._arm()

    def _arm(self) -> None:
        """Keep one timer for the state machine; a timer that fires early enough is kept."""
        wake_at = self.state.wake_at()
        if self._timer is not None and self._timer_at <= wake_at < math.inf:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at < math.inf:
            self._timer_at = wake_at
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._deliver(self.state.tick(asyncio.get_running_loop().time(), self._reading))
        self._flush()


def acknowledged(topic: str, completed: Completed) -> int:
    """Return the reason code of a completed publish. Raises PublishFailed for a refusal."""
    reason = completed.reasons[0]
    # After a reconnection 0x92 for a repeated PUBREL means that the server had completed it before (MQTT 5, 3.7.2.1).
    recovered = completed.resent and reason == Reason.PACKET_IDENTIFIER_NOT_FOUND
    if reason >= 0x80 and not recovered:
        raise PublishFailed(f"could not publish to {topic}: {explain(reason, completed.properties)}", reason)
    return reason
