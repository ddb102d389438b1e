"""Drains a node that is to serve no more clients: sends its clients to other nodes, and hands over the sessions that
stay behind.

::

    OPEN --begin--> DRAINING --(clients gone, sessions gone)--> done, for as long as nothing comes
      ^                |                                          |
      +----------------+----------------- cancel -----------------+

Clients are disconnected at a limited rate; MQTT 5 clients get the address of a node that accepts them. Clients that
reconnect there take their sessions along as usual (docs/SESSIONS.md). Sessions that are left because their client is
away or does not reconnect are *offered*: the node with the offer claims the client id and takes the session over, as if
the client had connected.

Invariant: an offer gives nothing away. A session stays here, stored, until the other node has asked for it. So a node
that refuses, fails, or is slow only costs time, and the session is offered to the next one. A newer claim wins, above
all that of a client that has connected to some node: an offer names the epoch that it is about
(``cluster.takeover.drain_offers``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.takeover.transfer_frames import Offer, TransferFrame
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import MOVED_PREFIX, NATS_PREFIX, Client, Session

TICK: Final = 0.05  # seconds between two batches
LOOK_SECONDS: Final = 0.5  # between two scans of all sessions
GRACE: Final = 1.0  # seconds for a client to reconnect elsewhere before its session is offered to any node
OFFER_SECONDS: Final = 5.0  # until a session that was not asked for is offered to another node
OFFERS_MAX: Final = 500  # outstanding at once
HOPE_SECONDS: Final = 3.0  # how long to wait for nodes that are connected but do not serve, or for this node itself
LINGER: Final = 1.0  # seconds in which clients that went elsewhere may ask for handshakes that they began here
HASTE: Final = 0.4  # with a time limit: fraction of the remaining time in which all clients have to be sent away


class Offered:
    def __init__(self, session: Session, node: int, until: float) -> None:
        self.session = session
        self.node = node
        self.until = until


class Drain(Subsystem):
    """``send`` sends to a node; ``handing_over`` counts sessions that are leaving and do not wait for an absent node.
    ``rate``: clients, and sessions, per second; higher when ``begin`` sets a time limit that needs it."""

    active: bool
    done: bool  # nothing is left here, or no node can take it
    moved: int  # clients that were told which node to use
    closed: int  # clients that could not be told
    handed: int  # sessions that were handed over
    declined: int  # offers that were declined, or not answered in time
    clients_left: int
    sessions_left: int

    def __init__(
        self,
        broker: BrokerState,
        node_directory: NodeDirectory,
        send: Callable[[int, TransferFrame], None],
        handing_over: Callable[[], int],
        rate: int,
    ) -> None:
        self.active = self.done = False
        self.moved = self.closed = self.handed = self.declined = self.clients_left = self.sessions_left = 0
        self._broker = broker
        self._ctx = broker.ctx
        self._node_directory = node_directory
        self._send = send
        self._handing_over = handing_over
        self._rate = rate
        self._busy_at = -inf  # when a client or a session was last leaving
        self._kept = 0  # sessions with a delayed will that are not waited for
        self._accepted_at = 0.0  # when a node last accepted sessions
        self._ends = inf
        self._may = 0.0  # unused part of the rate
        self._since = 0.0
        self._look_at = 0.0
        self._clients: deque[Client] = deque()
        self._sessions: deque[str] = deque()
        self._offered: dict[str, Offered] = {}
        self._tried: dict[str, dict[int, None]] = {}  # client id -> nodes that did not take the session
        self._sent: dict[str, tuple[int, float]] = {}  # client id -> (node its client was sent to, 0: none; when)
        self._given: dict[int, int] = {}  # node -> clients and sessions sent there

    def begin(self, now: float, seconds: float = inf, for_good: bool = False) -> None:
        """Accepts no clients, and sends the connected ones away. ``seconds``: everything has to be done by then. May be
        called again to change that."""
        self._ends = now + seconds
        nats = self._broker.nats
        # A node that is stopped does not wait for the period of lame duck mode (SIGUSR2), as nats-server does not.
        limited = min(HASTE * seconds, len(nats.clients) / self._rate)
        nats.leaving.begin(now, nats.config.lame_duck_duration if seconds == inf else limited)
        admission = self._ctx.connect_admission
        admission.for_good = for_good
        if self.active:
            return
        self.active = admission.shut = self._node_directory.draining = True
        self.done = False
        self._busy_at = -inf
        self.moved = self.closed = self.handed = self.declined = 0
        self._accepted_at = self._since = now
        self._may = self._look_at = 0.0
        self._find(now)

    def cancel(self) -> None:
        """Accepts clients again. Sessions that are already leaving continue to leave."""
        admission = self._ctx.connect_admission
        self.active = self.done = admission.shut = admission.for_good = self._node_directory.draining = False
        self._clients.clear()
        self._sessions.clear()
        for memory in (self._offered, self._tried, self._sent, self._given):
            memory.clear()
        self._broker.nats.leaving.cancel()

    def refused(self, node: int, client_ids: list[str]) -> None:
        """That node does not take these sessions."""
        for client_id in client_ids:
            offered = self._offered.get(client_id)
            if offered is not None and offered.node == node:
                self._give_up(client_id, offered)

    def look(self, now: float) -> None:
        if not self.active:
            return
        self._refill(now)
        nodes = self._node_directory.welcoming()
        self._look_at_offers(nodes, now)
        self._send_away(now)
        if not self._clients:
            self._offer(nodes, now)
            if not self._sessions and not self._offered and now >= self._look_at:
                self._find(now)
        may_accept = self._may_accept(nodes, now)
        if may_accept and (self._clients or self._offered or self._handing_over()):
            self._busy_at = now
        idle = not self._clients and not self._offered and not self.clients_left and not self._handing_over()
        if not may_accept and self._ends != inf:
            self.done = (
                not self._handing_over()
            )  # clients that are still here are told that the whole cluster is stopping
        else:
            self.done = idle and (
                not may_accept or (self.sessions_left <= self._kept and now >= self._busy_at + LINGER)
            )

    def wake_at(self, now: float) -> float:
        if not self.active:
            return inf
        return now + (LOOK_SECONDS if self.done and self._ends == inf else TICK)

    def is_busy(self) -> bool:
        return self.active

    # Selection and rate

    def _refill(self, now: float) -> None:
        rate = float(self._rate)
        if self._ends != inf:
            left = len(self._clients) + len(self._sessions)
            rate = max(rate, left / max(HASTE * (self._ends - now), TICK))
        self._may = min(self._may + rate * (now - self._since), 2 * rate * TICK + 1)
        self._since = now

    def _find(self, now: float) -> None:
        """Lists the clients and sessions that are here."""
        self._look_at = now + LOOK_SECONDS
        self.clients_left = len(self._broker.nats.clients)  # NATS clients leave by their own protocol (lame duck mode)
        self.sessions_left = self._kept = 0
        for session in self._ctx.sessions.values():
            client = session.client
            if session.node != 0 or session.is_group_queue or session.client_id.startswith((MOVED_PREFIX, NATS_PREFIX)):
                continue
            if client is not None:
                self.clients_left += 1
                self._clients.append(client)
            # without this it would leave as if its client had connected; it stays until its will is published
            elif session.will_at != 0.0:
                self.sessions_left += 1
                self._kept += self._ends == inf or session.will_at > self._ends
            else:
                self.sessions_left += 1
                _, when = self._sent.get(session.client_id, (0, -inf))
                if now >= when + GRACE:
                    self._sessions.append(session.client_id)

    def _may_accept(self, nodes: list[int], now: float) -> bool:
        """Whether a node may still take a session: connected nodes that do not drain are waited for, for a limited
        time."""
        if nodes and not self._ctx.isolated:
            self._accepted_at = now
            return True
        return now < self._accepted_at + HOPE_SECONDS and self._node_directory.undecided()

    # Clients

    def _send_away(self, now: float) -> None:
        while self._clients and self._may >= 1:
            client = self._clients.popleft()
            session = client.session
            if client.state == CLOSED or session is None:
                continue
            self._may -= 1
            self.clients_left = max(self.clients_left - 1, 0)
            fitting = self._node_directory.fitting(client.listener)
            node = self._least(list(fitting))
            reference = self._ctx.mqtt.server_reference or fitting.get(node, "")
            self._sent[session.client_id] = (node, now)
            self._given[node] = self._given.get(node, 0) + 1
            self._broker.ending.send_away(client, reference)
            self.sessions_left += not session.ended
            if client.version == 5 and reference:
                self.moved += 1
            else:
                self.closed += 1

    def _least(self, nodes: list[int]) -> int:
        """The node with the fewest clients, including those sent there from here; 0 without nodes."""
        return min(
            nodes, key=lambda node: (self._node_directory.clients(node) + self._given.get(node, 0), node), default=0
        )

    # Sessions

    def _offer(self, nodes: list[int], now: float) -> None:
        entries: dict[int, list[tuple[str, int]]] = {}
        while nodes and self._sessions and self._may >= 1 and len(self._offered) < OFFERS_MAX:
            client_id = self._sessions.popleft()
            session = self._ctx.sessions.get(client_id)
            if session is None or session.client is not None:
                continue  # it has left already
            self._may -= 1
            node = self._choose(client_id, nodes)
            self._offered[client_id] = Offered(session, node, now + OFFER_SECONDS)
            self._given[node] = self._given.get(node, 0) + 1
            entries.setdefault(node, []).append((client_id, session.epoch))
        for node, offers in entries.items():
            self._send(node, Offer(offers))

    def _choose(self, client_id: str, nodes: list[int]) -> int:
        tried = self._tried.get(client_id, {})
        left = [node for node in nodes if node not in tried]
        if not left:
            self._tried.pop(client_id, None)
            left = nodes
        sent, _ = self._sent.get(client_id, (0, 0.0))
        return sent if sent in left else self._least(left)

    def _look_at_offers(self, nodes: list[int], now: float) -> None:
        for client_id, offered in list(self._offered.items()):
            if offered.session.client_id != client_id:  # renamed: it is moving
                self.handed += 1
                self.sessions_left = max(self.sessions_left - 1, 0)
                self._done_with(client_id)
            elif offered.session.ended or offered.session.client is not None:
                self._done_with(client_id)
            elif now >= offered.until or offered.node not in nodes:
                self._give_up(client_id, offered)

    def _done_with(self, client_id: str) -> None:
        del self._offered[client_id]
        self._tried.pop(client_id, None)
        self._sent.pop(client_id, None)

    def _give_up(self, client_id: str, offered: Offered) -> None:
        """The offer failed: the next scan finds the session again."""
        del self._offered[client_id]
        self._tried.setdefault(client_id, {})[offered.node] = None
        self.declined += 1
