"""The heartbeats of this node, sent to all other nodes several times in each ``member_timeout``."""

from __future__ import annotations

from math import inf

from starlingmq.cluster.links.control_frames import Heartbeat
from starlingmq.cluster.links.heartbeat_changes import HeartbeatWriter
from starlingmq.cluster.peers.frame_sender import FrameSender
from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.peers.serving import ServingDecision
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.context.context import Context


class Heartbeats(Subsystem):
    def __init__(
        self,
        ctx: Context,
        view: ClusterView,
        sender: FrameSender,
        node_directory: NodeDirectory,
        serving: ServingDecision,
    ) -> None:
        self._ctx = ctx
        self._view = view
        self._sender = sender
        self._node_directory = node_directory
        self._serving = serving
        self._writer: HeartbeatWriter | None = None
        self._written_by = (0, 0)  # number and incarnation of this node

    def set_members(self, numbers: dict[int, None]) -> None:
        self._view.heartbeats.keep(numbers)

    def turn(self, now: float) -> None:
        """Sends a heartbeat if one is due, after everything that it reports was decided."""
        quorum, routes = self._view.quorum, self._view.routes
        if quorum is None or routes is None:
            return
        number = quorum.beat(now)
        if number == 0:
            return
        retaining = self._ctx.cluster.retained
        heartbeat = Heartbeat(
            epoch=routes.epoch,
            version=routes.version,
            vector=routes.vector(),
            heard=quorum.heard_directly(),
            connected=quorum.connected(),
            serving=self._serving.serving,
            membership=self._view.members.membership,
            relayed=quorum.heard_relayed(),
            number=number,
            taken=quorum.taken(),
            listeners=self._node_directory.own,
            draining=self._node_directory.draining,
            clients=self._ctx.counters.clients_connected,
            retained=0 if retaining is None else retaining.last,
            gone=quorum.missed(),
        )
        me = self._view.number, self._view.incarnation
        writer = self._writer
        if writer is None or self._written_by != me:
            writer = self._writer = HeartbeatWriter(me[0])
            self._written_by = me
        writer.write(heartbeat)
        written = writer
        self._sender.send_all_ways(lambda target: written.to(target, quorum.taken_by(target)))

    def wake_at(self, now: float) -> float:
        quorum = self._view.quorum
        return inf if quorum is None else quorum.wake_at()
