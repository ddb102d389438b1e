"""Owners of client ids, and their wills, in the memory of the nodes instead of etcd (docs/CLUSTER.md, etcd): this
node's part of it.

Law: two nodes talk about owners only while both know the same version of the table, and it lists both with their
present incarnations. A node with an earlier version gets the table from the other one; requests that both had under
way in the earlier version are forgotten, and asked again. So no node accepts the answer of a leader that it does not
count as one.

::

    table_keeper     the table in etcd              share_leader     the shares that this node leads
    owner_requests   claims of this node            share_books      its books, also those of other leaders' shares
    will_requests    wills of this node             held_keys        the state of this node, for new leaders
    share_lines      requests, one by one           share_channel    messages to one node
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.held_keys import HeldKeys
from starlingmq.cluster.shares.holdings import Holdings
from starlingmq.cluster.shares.owner_requests import OwnerRequests
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_channel import ShareChannel
from starlingmq.cluster.shares.share_leader import LeadState, ShareLeader
from starlingmq.cluster.shares.share_messages import (
    Ask,
    Claim,
    Copy,
    Disarm,
    Earlier,
    Hasten,
    KeyChanged,
    Message,
    OwnerAnswer,
    Read,
    Release,
    Settled,
    Statement,
    WillAnswer,
    WillChange,
    WillHint,
    WillNews,
    WillRead,
    WillsFound,
    WillsKept,
    WillsOf,
)
from starlingmq.cluster.shares.share_table import NO_TABLE, VERSION_SHIFT, Pair, decode_table, encode_table
from starlingmq.cluster.shares.table_keeper import TableKeeper
from starlingmq.cluster.shares.will_requests import WillRequests
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem

NEVER: Final = 1 << 62  # above all epochs
# of other nodes, and changes for their deputy
REQUESTS: Final = frozenset([Claim, Release, KeyChanged, WillChange, WillsKept, Disarm, Hasten])
LOOK_SECONDS: Final = 0.25  # between two looks at whether the leaders are connected that have to answer


class Shares(Subsystem):
    def __init__(
        self,
        view: ClusterView,
        cluster: str,
        patience: float,
        election: Election,
        owners: OwnerRequests,
        wills: WillRequests,
        books: ShareBooks,
        holdings: Holdings,
        is_gone: Callable[[int], bool],
    ) -> None:
        """``is_gone``: whether a node that is in the table cannot be a member any more, or does not serve."""
        self._view = view
        self._election = election
        self.owners = owners
        self.wills = wills
        self._holdings = holdings
        self._is_gone = is_gone
        self.keeper = TableKeeper(cluster, election, patience)
        self.table = NO_TABLE
        self.books = books
        self.leader = ShareLeader(self.books, self)
        self._held = HeldKeys(holdings)
        self._me = 0
        self._incarnation = 0
        self._taking_part = False
        self._channels: dict[int, ShareChannel] = {}
        self._local: deque[Message] = deque()  # of this node to itself
        self._asked: list[tuple[int, tuple[int, ...]]] = []  # (node, shares): to be answered
        self._answering: list[tuple[int, tuple[int, ...]]] = []  # those that ``_held`` is looking for
        self._words: dict[int, ShareFrame] = {}  # to nodes with another version
        self._looked_at = -inf
        self._begun = False  # this incarnation has been in a table
        self._prepared = 0  # ``is_prepared`` has found so many of the first shares to be, in this version
        # get an epoch below all that this incarnation can be granted
        self.on_begin: tuple[Callable[[int], None], ...] = ()

    # Links

    def send(self, node: int, message: Message) -> int:
        if node == self._me:
            self._local.append(message)
            return 0
        return self._channel(node).add(message)

    def taken(self, node: int) -> int:
        channel = self._channels.get(node)
        return 0 if channel is None else channel.taken

    def is_full(self, node: int) -> bool:
        channel = self._channels.get(node)
        return channel is not None and channel.full()

    def _channel(self, node: int) -> ShareChannel:
        channel = self._channels.get(node)
        if channel is None:
            channel = self._channels[node] = ShareChannel(self.table.version)
        return channel

    # Events

    def enter(self, life: NodeLife, now: float) -> None:
        self._me, self._incarnation = life.me.number, life.me.incarnation
        self.owners.enter(self._me, self._incarnation, self._holdings.newest())

    def enter_again(self, me: MemberInfo) -> None:
        self._incarnation = me.incarnation
        self.owners.enter_again(me.incarnation)
        self._begun = False

    def set_members(self, numbers: dict[int, None]) -> None:
        self.leader.set_members([member.number for member in self._view.members.membership.members])

    def connected(self, node: int) -> None:
        self._resend(node)

    def _resend(self, node: int) -> None:
        channel = self._channels.get(node)
        if channel is not None:
            channel.resend()

    def answered(self, answer: Answer, now: float) -> None:
        self.keeper.answered(answer, now)

    def received(self, node: int, incarnation: int, frame: ShareFrame) -> bool:
        """A frame for this incarnation. Returns whether ``take_owner_frames`` is all that is left to do about it: it
        brought only requests of other nodes, and changes for their deputy."""
        if frame.table:
            table = decode_table(frame.table)
            if table is not None:
                self.keeper.learn(table)
                if not (self.owners.has_answers() or self.wills.has_answers()):  # else in the turn, after them
                    self._follow_table()
        version = self.table.version
        if frame.version < version:
            self._words[node] = ShareFrame(version, 0, 0, b"", encode_table(self.table))
            self._resend(node)  # frames that came before the table were not taken
        elif frame.version > version and not frame.table:
            self._words[node] = ShareFrame(version, 0, 0, b"")
        elif frame.version == version and self._taking_part and self.table.lists(node, incarnation):
            only_requests = True
            for message in self._channel(node).received(frame):
                only_requests = only_requests and type(message) in REQUESTS
                self._take(node, message)
            return only_requests and not (frame.table or self._local or self.leader.is_pending())
        return False

    def _take(self, node: int, message: Message) -> None:
        # Those of each CONNECT first: for each other struct that one is compared with, isinstance asks its metaclass.
        if isinstance(message, KeyChanged):
            self._keep(node, message)
        elif isinstance(message, OwnerAnswer):
            self.owners.lines.answered(message)
        elif isinstance(message, (Claim, Release, Read, WillChange, WillRead, Disarm)):
            self.leader.take(node, message)
        elif isinstance(message, WillAnswer):
            self.wills.lines.answered(message)
        elif isinstance(message, WillNews):
            self.wills.news(message)
        elif isinstance(message, WillsOf):
            self.leader.read_wills(node, message)
        elif isinstance(message, WillsFound):
            self.wills.found(message)
        elif isinstance(message, WillsKept):
            self.books.keep_wills(node, message)
        elif isinstance(message, Hasten):
            self._channel(node).owe()
        elif isinstance(message, WillHint):
            self.books.hinted(node, message.change)
        elif isinstance(message, Copy):
            self.books.copied(node, message)
            self._channel(node).owe()
        elif isinstance(message, Ask):
            self._asked.append((node, message.shares))
        elif isinstance(message, Statement):
            self.leader.stated(node, message)
        elif isinstance(message, Settled):
            self.books.settled(node, message.shares)
        else:
            self._look_at_earlier(message)

    def _keep(self, leader: int, change: KeyChanged) -> None:
        if self.books.keep(leader, change) and change.ticket:
            node, armed = change.key.node, change.will != b""
            wills = self.books.books[change.share].wills.besides(change.client_id, node)
            self.send(node, OwnerAnswer(change.ticket, change.key.epoch, change.found, armed, wills))

    def _look_at_earlier(self, message: Earlier) -> None:
        for client_id, epoch in message.keys:
            self._holdings.release(client_id, epoch)

    def is_listed(self) -> bool:
        """Whether this node takes part in the present version of the table."""
        return self._taking_part

    def behind(self) -> dict[int, int]:
        """By node: the number of messages that it has not taken yet."""
        return {node: channel.added - channel.taken for node, channel in self._channels.items()}

    def is_prepared(self) -> bool:
        """Whether this node has the books of all shares that it leads, or whose deputy it is. A node that starts does
        not serve before: then the next node of a rolling restart can go."""
        if not self._taking_part:
            return False
        pairs = self.table.pairs
        while self._prepared < len(pairs) and not self._lacks(self._prepared, pairs[self._prepared]):
            self._prepared += 1
        return self._prepared == len(pairs)

    def _lacks(self, share: int, pair: Pair) -> bool:
        if pair.leader == self._me and self.leader.state(share) is not LeadState.SERVING:
            return True
        return pair.deputy == self._me and not self.books.has(share, pair)

    def lacking(self) -> int:
        """The number of shares that this node does not serve yet, or has no copy of."""
        return sum(self._lacks(share, pair) for share, pair in enumerate(self.table.pairs))

    # The table

    def _follow_table(self) -> None:
        table = self.keeper.table
        taking_part = table.lists(self._me, self._incarnation)
        if table.version == self.table.version and taking_part == self._taking_part:
            return
        copied = self.leader.copied()
        self.table, self._taking_part, self._prepared = table, taking_part, 0
        self._channels = {}
        self._local.clear()
        self._asked, self._answering = [], []
        if taking_part and not self._begun:
            self._begun = True
            self._begin(table.version << VERSION_SHIFT)
        me = self._me if taking_part else 0
        self.books.set_table(table, me)
        self.leader.set_table(table, me, copied)
        self.owners.lines.set_table(table, taking_part)
        self.wills.set_table(table, taking_part)

    def _look_at_nodes(self) -> None:
        if not self._election.leading:
            return
        nodes: dict[int, int] = {}
        missing = False
        for member in self._view.members.membership.members:
            number = member.number
            here = number == self._me or self._view.is_connected(number)
            if here or (self.table.lists(number, member.incarnation) and not self._is_gone(number)):
                nodes[number] = member.incarnation
            else:
                missing = True
        self.keeper.want(nodes, missing)

    def _begin(self, epoch: int) -> None:
        for sink in self.on_begin:
            sink(epoch)

    # A turn

    def registered(self, now: float) -> None:
        if not self._begun:
            self._begin(NEVER)

    def begin_turn(self, now: float) -> None:
        if not self._me:
            return
        self.owners.lines.now = self.wills.lines.now = now
        self._give_answers(now)  # before another table: what was granted belongs to what a new leader is told
        self._follow_table()
        self._pump()
        self._give_answers(now)
        self._look_at_leaders(now)

    def _give_answers(self, now: float) -> None:
        self.owners.give_answers(now)
        self.wills.give_answers()

    def _look_at_leaders(self, now: float) -> None:
        """A leader that is connected is slow at worst: that refuses no CONNECT."""
        if now < self._looked_at + LOOK_SECONDS or not self.is_busy():
            return
        self._looked_at = now
        self.wills.look()
        if self.owners.lines.idle():
            return
        if all(leader == self._me or self._view.is_connected(leader) for leader in self.owners.lines.leaders()):
            self.owners.answered_at = now

    def _pump(self) -> None:
        for leader, request in self.owners.lines.take_messages():
            self.send(leader, request)
        for node, message in self.wills.take_messages():
            self.send(node, message)
        self._take_local()
        self.leader.turn()
        self._state()
        self._take_local()

    def _take_local(self) -> None:
        while self._local:
            self._take(self._me, self._local.popleft())

    def _state(self) -> None:
        """Tells new leaders which client ids of their shares this node has state of."""
        if not self._answering:
            if not self._asked:
                return
            self._answering, self._asked = self._asked, []
            self._held.begin([share for _, shares in self._answering for share in shares])
        found = self._held.step()
        if found is None:
            return
        answering, self._answering = self._answering, []
        for node, shares in answering:
            for share in shares:
                self.send(node, self.books.statement(share, found[share]))

    def take_requests(self, now: float) -> list[Request]:
        if not self._me:
            return []
        self._look_at_nodes()  # as they are at the end of the turn: none may follow soon
        return self.keeper.take_requests(now)

    def take_notices(self) -> list[str]:
        return self.wills.take_notices()

    def take_owner_frames(self, now: float) -> list[tuple[int, ShareFrame]]:
        """The frames of this turn, after its requests."""
        self._pump()
        frames = list(self._words.items())
        self._words = {}
        for node, channel in self._channels.items():
            frames += [(node, frame) for frame in channel.take_frames(now)]
        return frames

    def is_busy(self) -> bool:
        return not self.owners.lines.idle() or not self.wills.idle()

    def is_pending(self) -> bool:
        waiting = self._local or self._asked or self._answering or self._words or self.owners.has_answers()
        if waiting or self.wills.has_answers():
            return True
        return self.leader.is_pending() or any(each.has_output() for each in self._channels.values())

    def wake_at(self, now: float) -> float:
        soonest = self.keeper.wake_at() if self._me else inf
        for channel in self._channels.values():
            soonest = min(soonest, channel.wake_at())
        return soonest
