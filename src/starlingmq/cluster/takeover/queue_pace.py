"""How fast the queues of sessions that leave this node are handed over.

The law: descriptions and inflight windows, which CONNECTs wait for, go to the link at once. Queues, which no CONNECT
waits for, stay in their sessions until the link takes them: at most one batch of them waits in the queue of a link.

The reason: the messages of a link arrive in order. If all queues were put into the link at once, the description of a
session would wait for the queues of all sessions before it. Clients that do not wait that long connect to yet another
node, so their sessions are handed over again before they have been used, each time with the queue: the work grows with
the impatience of the clients, and the wait with the work.

Sessions take turns, so a long queue does not delay short ones. If messages of other kinds fill the link, the next batch
follows as soon as the last one has left the queue of the link.
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
        self._waiting: dict[int, dict[OutboundSession, None]] = {}  # by target
        self._told: dict[int, int] = {}  # target -> sequence of the last message that had parts of queues in it

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
        """Nodes that sessions wait to hand over queues to."""
        return list(self._waiting)

    def next(self, target: int) -> OutboundSession | None:
        """The session whose turn it is; it waits no longer."""
        waiting = self._waiting.get(target)
        if waiting is None:
            return None
        outbound = next(iter(waiting))
        self.drop(outbound)
        return outbound

    def room(self, target: int) -> int:
        """Bytes of queues that may be handed over to that node now."""
        peer = self._peers.by_number.get(target)
        if peer is None:  # this node itself, or a node that has no link
            return self._batch if target == self._ctx.node else 0
        queue = peer.session.queue
        if queue is None or len(queue) == 0:
            return self._batch
        told = self._told.get(target, 0)
        return self._batch if queue.items and queue.items[0].message.sequence > told else 0

    def handed_over(self, target: int) -> None:
        """Parts of queues were put into the link."""
        self._told[target] = self._ctx.sequence

    def is_open(self, target: int) -> bool:
        """Whether sessions wait although the link takes more: the next turn continues."""
        if target not in self._waiting:
            return False
        peer = self._peers.by_number.get(target)
        if peer is None:
            return target == self._ctx.node
        queue, client = peer.session.queue, peer.session.client
        return (queue is None or len(queue) == 0) and client is not None and not client.blocked
