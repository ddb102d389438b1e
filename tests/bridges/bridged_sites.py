"""The brokers of ``bridge_world``, their connections, and the clients that publish and subscribe at them.

A broker is the one of ``tests.storage.crash_world``: the core, the driver and the durable store are real, and it dies
between any two steps. A connection is two heaps of bytes, which move by as many as the seed has it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Protocol

from tests.storage.crash_engines import CrashJournal, CrashKv
from tests.storage.crash_world import CrashWorld

from starlingmq.client.events import Completed, Connected, Event, Message
from starlingmq.client.options import NEVER_EXPIRES, ConnectOptions, Qos, Subscription
from starlingmq.client.state import ClientState
from starlingmq.core.limits.access import EVERY_PUBLISH, PUBLISH, SUBSCRIBE, Grant, Rights
from starlingmq.core.messages.link_marks import NEAR_LINK
from starlingmq.core.session.session import BRIDGE_PREFIX, Client, Session

BOUNDS = (1_000_000, 1 << 30)  # the defaults of max_mqueue_len and queue_bytes
FULL = 3_000  # bytes that wait for a broker before the other one is told to wait


class Site(CrashWorld):
    """A broker that is one end of bridges. ``denied``: levels of topics that bridges may not publish below, and
    ``hidden``: that they may not subscribe to, for the time being."""

    def __init__(self, name: str, random: Random, bridges: list[str], **settings: Any) -> None:
        self.name = name
        self.wires: list[Wire] = []
        self.bridges = bridges
        self.bounds = BOUNDS
        self.denied: bytes = b""
        self.hidden: bytes = b""
        self.loses = False
        super().__init__(random, fate=Random(random.random()), **settings)

    def begin_to_serve(self) -> None:
        super().begin_to_serve()
        near = (BRIDGE_PREFIX, NEAR_LINK)
        self.state.ctx.bridge(self.name, {prefix + name: self.bounds for name in self.bridges for prefix in near})

    def entitle(self, client: Client) -> None:
        """Give a bridge of another site its rights."""
        grants = []
        if self.denied:
            grants.append(Grant(False, PUBLISH, EVERY_PUBLISH, [self.denied], True, b""))
        if self.hidden:
            grants.append(Grant(False, SUBSCRIBE, EVERY_PUBLISH, [self.hidden], True, b""))
        self.state.ctx.give_rights(client, Rights(grants, True) if grants else None)

    def choose_disk(self) -> None:
        if self.loses:
            self.loses = False
            span = self.journal.span if isinstance(self.journal, CrashJournal) else 0
            self.kv, self.journal = CrashKv(self.machine), CrashJournal(self.machine, span)

    def session(self, client_id: str) -> Session | None:
        return self.state.ctx.sessions.get(client_id)

    def died(self) -> None:
        for wire in self.wires:
            wire.lost = wire.closed = True
        self.wires.clear()


class Wire:
    """One connection, as the driver sees it (``net.listeners.socket_connection.Handle``) and as its client does:
    ``up`` are bytes on their way to the broker, ``down`` those for the client."""

    def __init__(self, site: Site, listener: str, name: str) -> None:
        self.site = site
        self.up = b""
        self.down = b""
        self.reads = True
        self.closed = False  # neither end writes any more
        self.lost = False  # the driver knows it
        self.blocked = False
        site.wires.append(self)
        self.client = site.driver.opened(self, listener, name)
        site.run()

    # The driver's end

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default

    def write(self, data: bytes) -> None:
        self.site.machine.step()
        if not self.closed:
            self.down += data

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True
        if not self.lost:
            self.lost = True
            self.site.loop.call_soon(self.site.driver.lost, self.client)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    # The client's end

    def push(self, count: int) -> bool:
        """Up to ``count`` bytes reach the broker. Returns whether any did."""
        if self.lost or not self.up or not self.reads:
            return False
        data, self.up = self.up[:count], self.up[count:]
        self.site.driver.received(self.client, data)
        self.site.run()
        return True

    def pull(self, count: int) -> bytes:
        data, self.down = self.down[:count], self.down[count:]
        return data

    def cut(self, silent: bool = False) -> None:
        """The connection is lost; ``silent``: the broker does not learn of it until the session is taken over."""
        self.closed = True
        self.down = b""
        if not self.lost and not silent:
            self.lost = True
            self.site.driver.lost(self.client)
            self.site.run()

    def watch_room(self) -> None:
        """The broker waits while much is on its way to this client."""
        full = len(self.down) > FULL
        if full != self.blocked and not self.lost:
            self.blocked = full
            if full:
                self.site.driver.blocked(self.client)
            else:
                self.site.driver.drained(self.client)
                self.site.run()


class Witness(Protocol):
    """The world, as its clients know it."""

    def note(self, *what: object) -> None: ...

    def completed(self, payload: bytes, reason: int, resent: bool) -> None:
        """The broker has answered this message."""

    def arrived(self, reader: Reader, message: Message) -> None:
        """A subscriber has got it."""


class Party:
    """A client whose session never expires, and that remembers it."""

    def __init__(self, world: Witness, site: Site, name: str, version: int, receive_maximum: int = 65_535) -> None:
        self.world = world
        self.site = site
        self.name = name
        self.version = version
        self.wire: Wire | None = None
        modern = version == 5
        self.state = ClientState(
            ConnectOptions(
                client_id=name,
                version=version,
                clean_start=False,
                keep_alive=0,
                session_expiry=NEVER_EXPIRES if modern else 0,
                receive_maximum=receive_maximum if modern else 65_535,
            )
        )

    def connect(self) -> None:
        if self.wire is None:
            self.wire = Wire(self.site, "mqtt://test", self.name)
            self.state.connection_made(self.site.now)
            self.flush()

    def flush(self) -> None:
        for event in self.state.events():
            self.take(event)
        data = self.state.take(self.site.now)
        if self.wire is not None and data:
            self.wire.up += data

    def move(self, count: int) -> bool:
        """Bytes pass in both directions. Returns whether any did."""
        wire = self.wire
        if wire is None:
            return False
        moved = wire.push(count)
        data = wire.pull(count)
        if data:
            for event in self.state.receive(data, self.site.now):
                self.take(event)
            self.flush()
        elif wire.closed:
            self.gone()
        return moved or bool(data)

    def cut(self, silent: bool = False) -> None:
        if self.wire is not None:
            wire = self.wire
            self.gone()
            wire.cut(silent)

    def gone(self) -> None:
        self.wire = None
        self.state.connection_lost()

    def take(self, event: Event) -> None:
        raise NotImplementedError

    def quiet(self) -> bool:
        return self.subscribed()

    def subscribed(self) -> bool:
        """Its requests are answered."""
        return self.wire is not None and not self.state.unanswered


class Publisher(Party):
    """``sent`` has the payloads whose handshakes are not over, by token."""

    def __init__(self, world: Witness, site: Site, name: str, version: int) -> None:
        super().__init__(world, site, name, version)
        self.sent: dict[int, bytes] = {}

    def publish(self, topic: str, payload: bytes, qos: int, retained: bytes = b"") -> None:
        """``retained``: the name of a retained message, whose payload may be empty."""
        token = self.state.publish(topic, payload, qos, retain=retained != b"")
        self.sent[token] = retained or payload
        self.flush()

    def take(self, event: Event) -> None:
        if isinstance(event, Completed):
            self.world.completed(self.sent.pop(event.token), event.reasons[0], event.resent)

    def quiet(self) -> bool:
        return super().quiet() and not self.sent


class Reader(Party):
    """Subscribes to everything. ``got``: how often each payload came; ``fresh``: without DUP."""

    def __init__(self, world: Witness, site: Site, name: str, version: int, receive_maximum: int) -> None:
        super().__init__(world, site, name, version, receive_maximum)
        self.got: Counter[bytes] = Counter()
        self.fresh: Counter[bytes] = Counter()
        self.places: dict[tuple[bytes, ...], int] = {}
        self.late: list[Message] = []
        qos: Qos = 2
        self.state.subscribe([Subscription(filter="#", qos=qos)])

    def take(self, event: Event) -> None:
        if isinstance(event, Connected):
            self.world.note(self.name, "connected, session present", event.session_present)
        if isinstance(event, Completed):
            self.world.note(self.name, "subscribed", event.reasons)
        if isinstance(event, Message):
            self.late.append(event)
            self.got[event.payload] += 1
            self.fresh[event.payload] += not event.dup
            self.world.arrived(self, event)

    def acknowledge(self, share: float) -> bool:
        count = round(len(self.late) * share + 0.49)
        for message in self.late[:count]:
            self.state.taken(message)
        del self.late[:count]
        self.flush()
        return count > 0

    def quiet(self) -> bool:
        return super().quiet() and not self.late
