"""How fast the messages of sessions that leave this node are handed over.

The laws:

- Descriptions go to the link at once. Inflight windows and queues stay in their sessions until the link takes them: at
  most one batch of them waits in the queue of a link, apart from the rest of one window.
- Windows, which CONNECTs wait for, come before queues.
- A request waits here, and not its session at the target: if the client connects to yet another node meanwhile, the
  session goes there directly.

The reason: the messages of a link arrive in order. If all sessions were put into the link at once, the description of a
session would wait for the messages of all sessions before it. Clients that do not wait that long connect to yet another
node, so their sessions are handed over again before they have been used: the work grows with the impatience of the
clients, and the wait with the work.

The latest request is answered first, since its client waits longest from now on. Queues take turns, so a long one does
not delay short ones. If messages of other kinds fill the link, the next batch follows as soon as the last one has left
the queue of the link.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.core.broker import BrokerState

PART_OF_WINDOW: Final = 8  # a batch is this part of a link's window, so that frames of other kinds are not far behind
BATCH_BYTES_MIN: Final = 32 * 1024  # in one frame: a small window must not cost a round trip for each few messages
BATCH_BYTES_MAX: Final = 1024 * 1024


class QueuePace:
    def __init__(self, broker: BrokerState, link_window: int) -> None:
        """``link_window``: bytes that may be in flight to one node."""
        self._peers = broker.peers
        self._ctx = broker.ctx
        self._batch: Final = min(max(link_window // PART_OF_WINDOW, BATCH_BYTES_MIN), BATCH_BYTES_MAX)
        self._lines: dict[int, dict[str, None]] = {}  # target -> client ids that it has requested, the latest one last
        self._waiting: dict[int, dict[OutboundSession, None]] = {}  # target -> sessions with queues
        self._given: dict[int, int] = {}  # target -> bytes handed over and not in the link yet
        self._told: dict[int, int] = {}  # target -> sequence of the last message with parts of sessions

    # Requests

    def line_up(self, target: int, client_id: str) -> None:
        """The node has requested a session, and its link has no room."""
        line = self._lines.setdefault(target, {})
        line.pop(client_id, None)
        line[client_id] = None

    def lined_up(self) -> list[int]:
        """Nodes that have requested sessions that wait for their links."""
        return list(self._lines)

    def next_in_line(self, target: int) -> str | None:
        """The client id that the node has requested last; it waits no longer."""
        line = self._lines.get(target)
        if line is None:
            return None
        client_id = line.popitem()[0]
        if not line:
            del self._lines[target]
        return client_id

    def set_members(self, members: dict[int, None]) -> None:
        for target in [target for target in self._lines if target not in members]:
            del self._lines[target]
        for target in [target for target in self._told if target not in members]:
            del self._told[target]

    # Queues

    def wait(self, outbound: OutboundSession) -> None:
        """The session has a queue, and its window has been handed over."""
        self._waiting.setdefault(outbound.target, {})[outbound] = None

    def drop(self, outbound: OutboundSession) -> None:
        waiting = self._waiting.get(outbound.target)
        if waiting is not None:
            waiting.pop(outbound, None)
            if not waiting:
                del self._waiting[outbound.target]

    def targets(self) -> list[int]:
        """Nodes that queues wait to be handed over to."""
        return list(self._waiting)

    def next(self, target: int) -> OutboundSession | None:
        """The session whose turn it is; it waits no longer."""
        waiting = self._waiting.get(target)
        if waiting is None:
            return None
        outbound = next(iter(waiting))
        self.drop(outbound)
        return outbound

    # Links

    def room(self, target: int) -> int:
        """Bytes of sessions that may be handed over to that node now."""
        peer = self._peers.by_number.get(target)
        room = self._batch - self._given.get(target, 0)
        if peer is None:  # this node itself, or a node that has no link
            return room if target == self._ctx.node else 0
        queue, told = peer.session.queue, self._told.get(target)
        if queue is None or len(queue) == 0 or told is None:
            return room
        return room if queue.items and queue.items[0].message.sequence > told else 0

    def hand_over(self, target: int, size: int) -> None:
        """So many bytes of a session are handed over in this turn."""
        self._given[target] = self._given.get(target, 0) + size

    def take_given(self) -> list[int]:
        """Nodes that something was handed over to in this turn. The caller puts it into their links."""
        given, self._given = self._given, {}
        return list(given)

    def told(self, target: int) -> None:
        """All that was handed over is in the link."""
        self._told[target] = self._ctx.sequence

    def is_any_open(self) -> bool:
        """Whether sessions wait although a link takes more: the next turn continues."""
        return any(self._is_open(target) for target in {**self._lines, **self._waiting})

    def _is_open(self, target: int) -> bool:
        peer = self._peers.by_number.get(target)
        if peer is None:
            return target == self._ctx.node
        queue, client = peer.session.queue, peer.session.client
        return (queue is None or len(queue) == 0) and client is not None and not client.blocked
