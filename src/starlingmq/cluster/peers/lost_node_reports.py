"""Reports to the operator which nodes are gone, what is kept for them, and what they received when they were back.

::

    connected --gone--> lost --report--> reported --back--> catching up --report--> connected
        ^----------------'  back, before it was reported: counted as a loss

Invariant: after each report that a node is back, its next loss is reported after a pause at the earliest. The pause
doubles with each loss, up to PAUSE_MAX, until the node has been connected for CALM_SECONDS. So a node that flaps causes
few lines, and a node that stays away is always reported.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_backlog import PeerBacklog
from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.context.context import Context

PAUSE_FIRST: Final = 5.0  # seconds
PAUSE_MAX: Final = 300.0
CALM_SECONDS: Final = 600.0
NEVER_HEARD_SECONDS: Final = 10.0  # how long a node that was never connected may take before it is reported
SILENCE_SECONDS: Final = 1.0  # how long a silent node may take to be heard again, perhaps through other nodes
DELIVERY_SECONDS: Final = 5.0  # how long the report of a return waits for the delivery of what was kept
LOOK_SECONDS: Final = 0.25  # between two looks at that delivery


class NodeReport:
    """The state of the reports about one node. Times are those of the broker's clock."""

    def __init__(self, now: float) -> None:
        self.lost_at = now  # 0.0: it is connected
        self.itself_lost_at = now  # its last loss of its own: not that of another node that served its data
        self.never = True  # it was never connected since this node started
        self.reported = False  # the last report says that it is gone
        self.losses = 0  # since the last report
        self.draining = False  # it had announced that it stops or drains
        self.clients = 0  # that it had
        self.away = 0.0  # seconds of the last absence
        self.back_at = 0.0
        self.catching_up = False  # its return was reported before it had everything
        self.host = ""  # the other node that served its data when its return was reported; empty: the node itself
        self.pause = PAUSE_FIRST
        self.not_before = now + NEVER_HEARD_SECONDS  # of the next report
        self.calm_since = -inf  # of the last report of a return


class LostNodeReports(Subsystem):
    """``take_notices`` has the losses, ``take_news`` the returns. ``silence``: seconds after which a direct connection
    counts as lost if the node is still heard through other nodes. ``server_of`` names the node that serves the data of
    another one; empty: there are no copies, or no node does."""

    def __init__(self, ctx: Context, view: ClusterView, node_directory: NodeDirectory, silence: float) -> None:
        self._ctx = ctx
        self._view = view
        self._node_directory = node_directory
        self._silence = silence
        self.server_of: Callable[[str], str] = _no_copies
        self._nodes: dict[int, NodeReport] = {}
        self._closed: dict[int, float] = {}  # nodes without a direct connection -> since when
        self._relayed: dict[int, None] = {}  # those of them that were reported
        self._due_at = inf
        self._changed = False
        self._notices: list[str] = []
        self._news: list[str] = []

    # Events

    def enter_again(self, me: MemberInfo) -> None:
        self._nodes.clear()
        self._closed.clear()
        self._relayed.clear()

    def set_members(self, numbers: dict[int, None]) -> None:
        nodes = self._nodes
        for number in [number for number in nodes if number not in numbers]:
            del nodes[number]
            self._closed.pop(number, None)
            self._relayed.pop(number, None)
        for number in numbers:
            if number != self._view.number and number not in nodes:
                nodes[number] = NodeReport(self._ctx.now)
        self._changed = True

    def gone(self, number: int, now: float) -> None:
        """The node is not connected any more. To be called before the directory forgets it."""
        node = self._nodes.get(number)
        if node is None:
            return
        node.lost_at = now
        name = self._view.name_of(number)
        if self.server_of(name) in ("", name):
            node.itself_lost_at = now
        node.losses += 1
        node.catching_up = False
        node.draining = self._node_directory.drains(number)
        node.clients = self._node_directory.clients(number)
        self._changed = True

    def back(self, number: int, now: float) -> None:
        node = self._nodes.get(number)
        if node is None:
            return
        node.away = now - node.lost_at
        node.lost_at = 0.0
        node.back_at = now
        if node.never and not node.reported:
            node.losses = 0  # it has started, or this node has
            node.not_before = 0.0
        node.never = False
        self._changed = True

    def stream_closed(self, number: int, now: float) -> None:
        """The direct connection has ended."""
        self._closed.setdefault(number, now)
        self._changed = True

    def stream_opened(self, number: int) -> None:
        self._closed.pop(number, None)
        if number in self._relayed:
            del self._relayed[number]
            self._news.append(f"directly connected to node {self._view.name_of(number)} again")

    # Reports

    def finish(self, now: float) -> None:
        if not self._changed and now < self._due_at:
            return
        self._changed = False
        self._due_at = inf
        for number, node in self._nodes.items():
            if node.lost_at:
                self._look_at_lost(number, node, now)
            else:
                self._look_at_connected(number, node, now)
        for number, closed_at in self._closed.items():
            if number not in self._relayed and self._view.is_connected(number):
                self._look_at_relayed(number, closed_at, now)

    def _look_again(self, at: float) -> None:
        self._due_at = min(self._due_at, at)

    def _look_at_lost(self, number: int, node: NodeReport, now: float) -> None:
        if node.reported or not self._is_member(number):
            return
        due_at = max(node.not_before, node.lost_at if self._is_dead(number) else node.lost_at + SILENCE_SECONDS)
        if now < due_at:
            self._look_again(due_at)
            return
        name = self._view.name_of(number)
        if node.draining:
            self._news.append(f"node {name} has stopped; {self._kept(number)}")
        elif node.host and self.server_of(name) == name:
            waiting = f"messages for its sessions wait here until it serves them ({self._waiting(number):,} now)"
            self._news.append(f"node {name} takes its data back from {node.host}; {waiting}")
        else:
            self._notices.append(self._loss(number, node))
        node.reported = True
        node.losses = 0
        self._lengthen_pause(node, now)

    def _look_at_connected(self, number: int, node: NodeReport, now: float) -> None:
        if not (node.reported or node.losses or node.catching_up):
            return
        if not node.reported and not node.catching_up and now < node.not_before:
            self._look_again(node.not_before)
            return
        backlog = self._backlog(number)
        left = backlog.left
        if left and (node.catching_up or now < node.back_at + DELIVERY_SECONDS):
            self._look_again(now + LOOK_SECONDS)
            return
        self._news.append(self._return(number, node, backlog))
        if not node.reported and not node.catching_up:
            self._lengthen_pause(node, now)
        if left:
            self._look_again(now + LOOK_SECONDS)
        node.catching_up = left != 0
        node.reported = False
        node.losses = 0
        node.calm_since = now
        node.not_before = now + node.pause

    def _look_at_relayed(self, number: int, closed_at: float, now: float) -> None:
        if now < closed_at + self._silence:
            self._look_again(closed_at + self._silence)
            return
        self._relayed[number] = None
        self._notices.append(
            f"no direct connection to node {self._view.name_of(number)} for {now - closed_at:.0f} s; frames for it are "
            "relayed by other nodes. Check the network between the two nodes"
        )

    def _lengthen_pause(self, node: NodeReport, now: float) -> None:
        calm = now >= node.calm_since + CALM_SECONDS
        node.pause = PAUSE_FIRST if calm else min(2.0 * node.pause, PAUSE_MAX)

    # Sentences

    def _loss(self, number: int, node: NodeReport) -> str:
        quorum = self._view.quorum
        who = f"{node.host}, which served its data, " if node.host else "it "
        if node.never:
            why = "it has not been connected since this node started"
        elif self._is_dead(number):
            why = f"the process of {who}has ended" if node.host else "its process has ended"
        else:
            why = f"{who}is not heard any more"
        if node.losses > 1:
            why += f", for the {node.losses}. time since the last report"
        holds = "the quorum holds" if quorum is not None and quorum.enough() else "there is no quorum"
        clients = f"; clients that were connected to it: {node.clients:,}" if node.clients else ""
        name = self._view.name_of(number)
        return (
            f"node {name} is gone: {why}{clients}; {holds}; {self._kept(number)}. Start it again or check the network; "
            f"if it will not return, run starlingmq ctl cluster forget {name}"
        )

    def _kept(self, number: int) -> str:
        """The messages that are kept for a node that is away."""
        elsewhere = ", or another node serves its data" if self.server_of(self._view.name_of(number)) else ""
        waiting = self._waiting(number)
        return f"messages for its sessions are kept here until it is back{elsewhere} ({waiting:,} now)"

    def _return(self, number: int, node: NodeReport, backlog: PeerBacklog) -> str:
        name = self._view.name_of(number)
        server = self.server_of(name)
        moved, node.host = node.host, server if server != name else ""
        if node.catching_up:
            return f"{_passed_on(backlog)} to node {name}"
        if node.host and node.host != moved:
            back = f"{node.host} serves the data of node {name} after {node.away:.1f} s"
        elif moved and not node.host:
            back = f"node {name} serves its data again after {node.away:.1f} s"
        elif node.losses > 1:
            back = f"node {name} was disconnected {node.losses} times since the last report and is back"
        elif not node.reported:
            back = f"node {name} was disconnected for {node.away:.1f} s"
        else:
            back = f"node {name} is back after {node.away:.1f} s"
        return f"{back}; {_passed_on(backlog)}" if backlog.total else f"{back}; no messages waited for it"

    def _waiting(self, number: int) -> int:
        transport = self._view.transports.get(number)
        return 0 if transport is None else transport.waiting()

    def _backlog(self, number: int) -> PeerBacklog:
        transport = self._view.transports.get(number)
        return PeerBacklog() if transport is None else transport.backlog()

    def _is_member(self, number: int) -> bool:
        return any(member.number == number for member in self._view.members.membership.members)

    def _is_dead(self, number: int) -> bool:
        quorum = self._view.quorum
        return quorum is not None and quorum.is_dead(number)

    # Outputs

    def gone_since(self, number: int) -> float:
        """When the node was lost; for a node that was never connected, when it became known. 0.0: it is connected."""
        node = self._nodes.get(number)
        return 0.0 if node is None else node.lost_at

    def last_lost_at(self, number: int) -> float:
        """When the node itself was lost for the last time, also if it is connected now, or if another node has served
        its data since then, and was lost, too. For a node that was never connected, when it became known."""
        node = self._nodes.get(number)
        return 0.0 if node is None else node.itself_lost_at

    def has_stopped(self, number: int) -> bool:
        """Whether the node is gone, and had announced that it stops or drains."""
        node = self._nodes.get(number)
        return node is not None and node.lost_at != 0.0 and node.draining

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def take_news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def has_input(self) -> bool:
        return self._changed

    def wake_at(self, now: float) -> float:
        return self._due_at


def _passed_on(backlog: PeerBacklog) -> str:
    """The fate of the messages that waited for a node. Only that node knows whether their receivers have them."""
    total = f"{backlog.total:,} messages that waited for it"
    if not backlog.left and not backlog.dropped:
        return f"the {total} were passed on"
    waiting = f", {backlog.left:,} wait" if backlog.left else ""
    dropped = f", {backlog.dropped:,} were dropped here: see the metric of dropped messages" if backlog.dropped else ""
    return f"of the {total}, {backlog.passed_on:,} were passed on{waiting}{dropped}"


def _no_copies(name: str) -> str:
    return ""
